"""How large the 64-bit sums in a kernel's memory become: see :mod:`.proof`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import tvm
import tvm_ffi
from tvm import tirx

from tapml_targets.codegen.symbol_bounds import INT32, Range
from tapml_targets.codegen.value_ranges import ValueRanges
from tapml_targets.errors import CompileError

UNKNOWN_STEPS: Final = 1 << 62
"""Of a loop without a known end."""

# More than these leave no number of 32 bits.
_MOST_DOUBLINGS: Final = 32


@dataclass
class _Sum:
    """What a sum begins with, what all steps add to it, and how often it doubles."""

    first: Range = (0, 0)
    added: Range = (0, 0)
    doublings: int = 0

    def bound(self) -> Range:
        """Whatever the order of the steps, it is within these."""
        factor = 1 << min(self.doublings, _MOST_DOUBLINGS)
        lower, upper = (a + b for a, b in zip(self.first, self.added, strict=True))
        # A doubling takes a range away from zero alone.
        return min(lower, lower * factor), max(upper, upper * factor)


class Sums:
    """The sums of one walk over a kernel.

    A tensor that the kernel is given holds one only where the kernel writes its first value, too.
    Elements of one buffer are not told apart. Threads that add to the same element have a barrier
    between them, or the kernel has a race, so that each of them takes steps of its own.

    Parameters
    ----------
    ranges
        What the variables in the kernel can be; :meth:`finish` adds the sums.
    """

    def __init__(self, ranges: ValueRanges) -> None:
        self._ranges = ranges
        self._first: dict[Any, Range] = {}
        self._sums: dict[Any, _Sum] = {}

    def begin(self, buffer: Any, lower: int, upper: int) -> None:
        """Note a value that is written and is no step of a sum."""
        before = self._first.get(buffer, (lower, upper))
        self._first[buffer] = (min(lower, before[0]), max(upper, before[1]))

    def note(self, store: Any, steps: int) -> Any:
        """What a store adds to the element that it writes; None where it is no step of a sum."""
        added = _added(store)
        if added is None or (
            store.buffer in self._ranges.given and store.buffer not in self._first
        ):
            return None
        if _is_of(added, store.buffer):
            sum_ = self._sums.setdefault(store.buffer, _Sum())
            sum_.doublings = min(sum_.doublings + steps, UNKNOWN_STEPS)
            return added
        if _reads(added, store.buffer):
            return None
        sum_ = self._sums.setdefault(store.buffer, _Sum())
        lower, upper = self._ranges.of(added)
        sum_.added = (
            sum_.added[0] + steps * min(lower, 0),
            sum_.added[1] + steps * max(upper, 0),
        )
        return added

    def finish(self) -> None:
        """Note what all sums can be.

        Raises
        ------
        CompileError
            If one of them does not fit 32 bits.
        """
        for buffer, sum_ in self._sums.items():
            sum_.first = self._first.get(buffer, (0, 0))
            lower, upper = sum_.bound()
            if lower < INT32[0] or upper > INT32[1]:
                raise CompileError(
                    f"the 64-bit sum {str(buffer.name)!r} may be from {lower} to {upper}, as far "
                    "as the shapes tell: this target has 32 bits; compile for smaller shapes, or "
                    "keep the operator on the source"
                )
            self._ranges.keep(buffer, lower, upper)


def _added(store: Any) -> Any:
    value = store.value
    if not isinstance(value, tirx.Add):
        return None
    for own, other in ((value.a, value.b), (value.b, value.a)):
        if _is_of(own, store.buffer) and all(
            map(tvm_ffi.structural_equal, own.indices, store.indices)
        ):
            return other
    return None


def _is_of(node: Any, buffer: Any) -> bool:
    return isinstance(node, tvm.ir.TensorLoad) and node.source.same_as(buffer)


def _reads(node: Any, buffer: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(node, [(tvm.ir.TensorLoad, found.append)])
    return any(each.source.same_as(buffer) for each in found)
