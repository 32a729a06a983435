"""How an operator was placed where it could not be one kernel: a line in its Library's metadata.

It stays with the operator when Libraries are linked, and goes where the Library goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tapml_targets.library import Library

_KEY: Final = "placement:"
_MOST: Final = 1000


def placed(metadata: Mapping[str, str], operator: str, how: str) -> dict[str, str]:
    """Metadata that says how an operator was placed: after what was said of its parts."""
    parts = [text for key, text in metadata.items() if key.startswith(_KEY)]
    kept = {key: text for key, text in metadata.items() if not key.startswith(_KEY)}
    return kept | {f"{_KEY}{operator}": "; ".join(dict.fromkeys((how, *parts)))[:_MOST]}


def placement_of(library: Library, operator: str) -> str:
    """How a Library places an operator; empty where its kernels are what the compiler made."""
    return library.metadata.get(f"{_KEY}{operator}", "")
