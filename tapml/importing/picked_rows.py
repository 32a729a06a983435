"""Rows that a mask picks, and their number, which only a run knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tapml.importing.origins import module_line
from tapml_targets.errors import UnsupportedOperatorError


class Loops:
    """Lines with a loop over the places of a mask, or that ask whether a mask picks any.

    `left_out` tells of each whether a mask left a place out there, or picked none; only where it
    `looks`, since tensors that are exported have no numbers.
    """

    def __init__(self, *, looks: bool = False) -> None:
        self.left_out: dict[str, bool] = {}
        self._looks = looks

    def over(self, mask: Tensor) -> None:
        """A loop over the places of `mask` begins."""
        self._note(mask, torch.all)

    def ask(self, mask: Tensor) -> None:
        """The module asks whether `mask` picks any."""
        self._note(mask, torch.any)

    def _note(self, mask: Tensor, is_full: Callable[[Tensor], Tensor]) -> None:
        line = module_line()
        with torch._C.DisableTorchFunction():
            found = self._looks and not bool(is_full(mask))
        self.left_out[line] = self.left_out.get(line, False) or found


class Picked(NamedTuple):
    """The mask of all rows of a tensor; `axis` is that of the mask whose places the rows are.

    With `loops`, a loop over them runs over all, and is as if there were some.
    """

    mask: Tensor
    axis: int | None = None
    loops: Loops | None = None


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
        loops = number.picked.loops
        if other != 0 or loops is None:
            asked(number)
        else:
            loops.ask(number.picked.mask)
        return answer

    return answered


for _each, _answer in (("eq", False), ("ne", True), ("gt", True), ("bool", True)):
    setattr(Count, f"__{_each}__", _any(_answer))
