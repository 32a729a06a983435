"""Operators that cannot be imported are found before the import starts, all of them at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from tapml.graph.plan import Origin
from tapml_targets.errors import UnsupportedOperatorError

_SHOWN_PLACES = 3


def check_supported(
    program: torch.export.ExportedProgram,
    origins: Mapping[str, Origin],
    supported: Collection[str],
    entry: str,
) -> None:
    """Compare the operations of an exported graph with those the importer knows.

    Parameters
    ----------
    program
        The exported program, decomposed.
    origins
        By FX node name.
    supported
        Names of the importer's converters, e.g. ``add.Tensor``.
    entry
        Name of the entry, for the message.

    Raises
    ------
    UnsupportedOperatorError
        Naming every operator that has no converter, with module path and source line.
    """
    missing: dict[str, list[Origin]] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and _converter_name(node.target) not in supported:
            missing.setdefault(str(node.target), []).append(origins[node.name])
    if not missing:
        return
    lines = []
    for operation, places in missing.items():
        shown = dict.fromkeys(
            f"{place.module_path or 'the model'} ({place.source or 'no source line'})"
            for place in places
        )
        more = f" and {len(shown) - _SHOWN_PLACES} more" if len(shown) > _SHOWN_PLACES else ""
        lines.append(f"  {operation} in {', '.join(list(shown)[:_SHOWN_PLACES])}{more}")
    raise UnsupportedOperatorError(
        f"{entry!r} uses {len(missing)} operator{'s' if len(missing) > 1 else ''} that cannot be "
        "imported:\n" + "\n".join(lines) + "\nWrite the place with other torch operations."
    )


def _converter_name(target: object) -> str:
    return str(getattr(target, "__name__", target))
