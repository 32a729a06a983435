"""Rows that a mask picks, and their number, which only a run knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tapml.importing.origins import module_line
from tapml_targets.errors import UnsupportedOperatorError


class Picked(NamedTuple):
    """The mask of all rows of a tensor; `axis` is that of the mask whose places the rows are.

    With `each`, a loop over them runs over all, and is as if there were some.
    """

    mask: Tensor
    axis: int | None = None
    each: bool = False


class Count(torch.SymInt):
    """How many rows a mask picks: an extent of shapes, and no number to compute with."""

    def __init__(self, extent: Any, picked: Picked) -> None:
        super().__init__(getattr(extent, "node", None))  # type: ignore[no-untyped-call]
        self.extent = extent
        self.picked = picked

    def __repr__(self) -> str:
        return "a number of picked rows"

    __hash__ = object.__hash__


def asked(number: Any, *args: Any) -> Any:
    """Raise: a number of rows is no number to compute with."""
    raise UnsupportedOperatorError(
        f"{module_line()}: the number of rows that a mask picks, and only a run knows it: "
        "take mask.sum()"
    )


for _each in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "radd", "rsub", "rmul", "rtruediv",
    "rfloordiv", "rmod", "rpow", "eq", "ne", "lt", "le", "gt", "ge", "bool", "int", "index",
    "float", "neg", "pos", "abs", "round", "and", "or", "rand", "ror", "divmod", "rdivmod",
    "sym_max", "sym_min", "sym_float", "sym_ite", "trunc", "floor", "ceil",
):  # fmt: skip
    setattr(Count, f"__{_each}__", asked)


def _any(answer: bool) -> Callable[..., bool]:
    """Whether there are some: a loop over all places takes none for no effect."""

    def answered(number: Count, other: Any = 0) -> bool:
        if other != 0 or not number.picked.each:
            asked(number)
        return answer

    return answered


for _each, _answer in (("eq", False), ("ne", True), ("gt", True), ("bool", True)):
    setattr(Count, f"__{_each}__", _any(_answer))
