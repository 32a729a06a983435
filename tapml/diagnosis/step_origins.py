"""Maps a step of a fused operator to the model's operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tapml.plan.graph_plan import Origin

_MOST: Final = 4
# TVM's names and torch's names of the same operations.
_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "multiply": ("mul", "div", "addmm", "baddbmm"),
    "add": ("add", "addmm", "baddbmm", "bias", "linear", "convolution"),
    "subtract": ("sub", "rsub"),
    "divide": ("div", "reciprocal", "mean"),
    "power": ("pow",),
    "negative": ("neg",),
    "matmul": ("mm", "bmm", "matmul", "addmm", "baddbmm", "linear", "einsum"),
    "conv": ("convolution", "conv"),
    "pad": ("constant_pad", "convolution", "pool"),
    "concatenate": ("cat", "stack"),
    "transpose": ("permute", "transpose", "t"),
    "slice": ("slice", "select", "split", "narrow"),
    "split": ("split", "chunk", "unbind"),
    "cast": ("to", "copy", "convert", "float", "half"),
    "take": ("embedding", "index", "gather"),
    "maximum": ("clamp", "maximum", "relu"),
    "minimum": ("clamp", "minimum"),
    "softmax": ("softmax",),
    "layer": ("layer_norm",),
    "mean": ("mean",),
    "where": ("where", "masked_fill"),
}


def origins_of_step(name: str, origins: Sequence[Origin]) -> tuple[str, ...]:
    """The origins that a step of this name may have, as text; all if there is only one.

    The names of TVM's blocks identify the kind of torch operation, but not which of several.
    """
    modules: dict[tuple[str, str], dict[str, None]] = {}
    for origin in origins:
        found = modules.setdefault((origin.operation, origin.source), {})
        if origin.module_path:
            found[origin.module_path] = None
    places = {
        (operation, source): f"{operation} at {source}{_in_modules(list(paths))}"
        for (operation, source), paths in modules.items()
    }
    if len({operation for operation, _ in places}) == 1:
        return tuple(places.values())[:_MOST]
    words = name.partition(".")[0].split("_")
    wanted = {found for word in words for found in _NAMES.get(word, (word,))}
    wanted |= {found for key, names in _NAMES.items() if name.startswith(key) for found in names}
    return tuple(
        text
        for (operation, _), text in places.items()
        if any(part in wanted for part in _parts(operation))
    )[:_MOST]


def _in_modules(paths: Sequence[str]) -> str:
    """The first module that runs a line, and the number of others, because layers share code."""
    if not paths:
        return ""
    others = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f" ({paths[0]}{others})"


def _parts(operation: str) -> list[str]:
    """``aten._softmax.default`` as ``_softmax``, ``softmax``."""
    plain = operation.removeprefix("aten.").split(".")[0]
    return [plain, plain.strip("_"), *plain.strip("_").split("_")]
