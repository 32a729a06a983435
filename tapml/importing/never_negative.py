"""Indices that cannot be negative, so that nothing has to count them from the end.

Places of the largest ones (``topk``, ``argmax``, ``sort``), counted numbers (``arange``), what is
clamped to 0 or more, and views of these. An expert's number is one: a choice between ``x`` and
``x + n`` needs all 64 bits of an index that may be anything, which not every platform has.
"""

from __future__ import annotations

import operator
from typing import Any, Final

from torch import fx

_PLACES: Final = frozenset({"argmax", "argmin", "argsort"})
# The second thing that these give is places.
_WITH_PLACES: Final = frozenset({"topk", "sort", "max", "min", "kthvalue"})
_VIEWS: Final = frozenset(
    {
        *("view", "_unsafe_view", "reshape", "flatten", "unflatten", "expand", "squeeze"),
        *("unsqueeze", "transpose", "permute", "t", "clone", "alias", "contiguous", "detach"),
        *("slice", "select", "repeat", "gather", "index_select"),
    }
)
_MOST_STEPS: Final = 32


def is_never_negative(node: object, steps: int = _MOST_STEPS) -> bool:
    """Whether a tensor of integers in a graph has no negative element, as far as it shows."""
    if not isinstance(node, fx.Node) or node.op != "call_function" or not steps:
        return False
    if node.target is operator.getitem:
        source, place = node.args
        return isinstance(source, fx.Node) and bool(place == 1) and _name(source) in _WITH_PLACES
    name = _name(node)
    if name in _PLACES:
        return True
    if name in _VIEWS:
        return is_never_negative(node.args[0], steps - 1)
    if name == "arange":
        return _counts_up(node.args)
    if name in {"clamp", "clamp_min"}:
        least = node.args[1] if len(node.args) > 1 else node.kwargs.get("min")
        return isinstance(least, int) and least >= 0
    return False


def _name(node: fx.Node) -> str:
    parts = str(node.target).split(".")
    return parts[1] if parts[0] == "aten" and len(parts) > 1 else ""


def _counts_up(arguments: tuple[Any, ...]) -> bool:
    """Whether ``arange(end)`` or ``arange(begin, end, step)`` begins at 0 or more and goes up."""
    begin = arguments[0] if len(arguments) > 1 else 0
    step = arguments[2] if len(arguments) > 2 else 1
    return isinstance(begin, int) and begin >= 0 and isinstance(step, int) and step > 0
