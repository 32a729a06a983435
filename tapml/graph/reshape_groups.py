"""How the axes of a tensor go together with those of a reshaped one.

A reshape merges and splits axes that lie side by side: (1, 4, S, 32) and (4, S, 32) are three
groups, (1, 4) and (4), (S) and (S), (32) and (32). An operand that is broadcast to the one shape
can be broadcast to the other where, in every group, it has all axes or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import tvm_ffi
from tvm import tirx

Group: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]


def axis_groups(first: Sequence[Any], second: Sequence[Any]) -> list[Group] | None:
    """Axes of two shapes of one tensor that hold the same elements, from left to right.

    Returns
    -------
    groups
        Axes of `first` and axes of `second` for each group; None where the two shapes cannot be
        taken apart, as (2, 3) and (3, 2) cannot, or hold different numbers of elements.
    """
    seen: list[Any] = []
    sizes = (
        [_Size.of(extent, seen) for extent in first],
        [_Size.of(extent, seen) for extent in second],
    )
    groups: list[Group] = []
    at = [0, 0]
    while at[0] < len(first) and at[1] < len(second):
        start = tuple(at)
        products = [sizes[side][at[side]] for side in (0, 1)]
        at = [at[0] + 1, at[1] + 1]
        while products[0] != products[1]:
            side = 0 if products[0].is_part_of(products[1]) else 1
            if not products[side].is_part_of(products[1 - side]) or at[side] == len(sizes[side]):
                return None
            products[side] = products[side].times(sizes[side][at[side]])
            at[side] += 1
        groups.append((tuple(range(start[0], at[0])), tuple(range(start[1], at[1]))))
    for side in (0, 1):
        # Axes of extent 1 at the end belong to the last group.
        rest = range(at[side], len(sizes[side]))
        if not groups or any(sizes[side][axis] != _ONE for axis in rest):
            if rest:
                return None
            continue
        left, right = groups[-1]
        groups[-1] = (left + tuple(rest), right) if side == 0 else (left, right + tuple(rest))
    return groups


def regrouped(
    operand: Sequence[Any], first: Sequence[Any], second: Sequence[Any], groups: Sequence[Group]
) -> list[Any] | None:
    """The shape in which `operand` meets `second` as it meets `first` by broadcasting.

    Parameters
    ----------
    operand
        A shape that can be broadcast to `first`.
    first, second
        Two shapes of one tensor.
    groups
        Their axes, as :func:`axis_groups` gives them.

    Returns
    -------
    shape
        With no more leading axes of extent 1 than `operand` needs; None where there is none.
    """
    one = tirx.IntImm("int64", 1)
    padded = [one] * (len(first) - len(operand)) + list(operand)
    shape: list[Any] = []
    for left, right in groups:
        if all(_equal(padded[axis], first[axis]) for axis in left):
            shape += [second[axis] for axis in right]
        elif all(_equal(padded[axis], one) for axis in left):
            shape += [one] * len(right)
        else:
            return None
    while len(shape) > len(operand) and _equal(shape[0], one):
        shape.pop(0)
    return shape


def same_shape(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Whether two shapes are known to be one."""
    return len(first) == len(second) and all(map(_equal, first, second))


def same_size(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Whether two shapes are known to hold equally many elements."""
    seen: list[Any] = []
    sizes = []
    for shape in (first, second):
        size = _ONE
        for extent in shape:
            size = size.times(_Size.of(extent, seen))
        sizes.append(size)
    return sizes[0] == sizes[1]


def _equal(first: Any, second: Any) -> bool:
    return bool(tvm_ffi.structural_equal(first, second))


class _Size(NamedTuple):
    """A number of elements: an integer times symbolic extents."""

    number: int
    symbols: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, extent: Any, seen: list[Any]) -> _Size:
        """The size of one axis; `seen` collects the symbolic extents met."""
        if isinstance(extent, int | tirx.IntImm):
            return cls(int(extent), ())
        for index, other in enumerate(seen):
            if _equal(extent, other):
                return cls(1, ((index, 1),))
        seen.append(extent)
        return cls(1, ((len(seen) - 1, 1),))

    def times(self, other: _Size) -> _Size:
        """The product."""
        count = Counter(dict(self.symbols)) + Counter(dict(other.symbols))
        return _Size(self.number * other.number, tuple(sorted(count.items())))

    def is_part_of(self, other: _Size) -> bool:
        """Whether `other` is a multiple of this one, as far as the extents tell."""
        mine, others = Counter(dict(self.symbols)), Counter(dict(other.symbols))
        return self.number > 0 and other.number % self.number == 0 and not mine - others


_ONE = _Size(1, ())
