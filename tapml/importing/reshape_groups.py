"""Matches the axes of a tensor with those of its reshaped form.

A reshape merges and splits adjacent axes: (1, 4, S, 32) and (4, S, 32) have three groups, (1, 4)
and (4), (S) and (S), (32) and (32). An operand that broadcasts to one shape can broadcast to the
other if, in every group, it has all axes or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import tvm_ffi
from tvm import tirx

Group: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]


def axis_groups(first: Sequence[Any], second: Sequence[Any]) -> list[Group] | None:
    """Groups of axes that hold the same elements in two shapes of one tensor, left to right.

    Returns
    -------
    groups
        Axes of `first` and axes of `second` per group; None if the shapes have no common groups,
        such as (2, 3) and (3, 2), or different sizes.
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
        # Trailing axes of extent 1 belong to the last group.
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
    """The shape in which `operand` broadcasts to `second` as it does to `first`.

    Parameters
    ----------
    operand
        A shape that broadcasts to `first`.
    first, second
        Two shapes of one tensor.
    groups
        Their axes, from :func:`axis_groups`.

    Returns
    -------
    shape
        Without unneeded leading axes of extent 1; None if there is no such shape.
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
    """Whether two shapes are provably equal."""
    return len(first) == len(second) and all(map(_equal, first, second))


def same_size(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Whether two shapes provably have equally many elements."""
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
        """The size of one axis; `seen` collects symbolic extents."""
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
        """Whether `other` is provably a multiple of this size."""
        mine, others = Counter(dict(self.symbols)), Counter(dict(other.symbols))
        return self.number > 0 and other.number % self.number == 0 and not mine - others


_ONE = _Size(1, ())
