"""How an operator was placed that could not be one kernel: a line in its Library's metadata.

Linking keeps the line with the operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tapml_targets.library import Library

_KEY: Final = "placement:"
_MOST: Final = 1000


def with_placement(metadata: Mapping[str, str], operator: str, how: str) -> dict[str, str]:
    """`metadata` with how an operator was placed, followed by the lines of its parts."""
    parts = [text for key, text in metadata.items() if key.startswith(_KEY)]
    kept = {key: text for key, text in metadata.items() if not key.startswith(_KEY)}
    return kept | {f"{_KEY}{operator}": "; ".join(dict.fromkeys((how, *parts)))[:_MOST]}


def placement_of(library: Library, operator: str) -> str:
    """How a Library places an operator; empty if its kernels are unchanged."""
    return library.metadata.get(f"{_KEY}{operator}", "")
