"""Distances between the outputs of several implementations, in units and in bits.

The unit is that of verdicts: sensitivity plus one ulp of the operator's float64 twin. A correct
kernel stays within a quarter of its limit. So if two implementations of the same kernel differ by
more than the limit, at least one of them is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapml.verdicts.discrete import wrong_elements
from tapml.verdicts.expectation import ExpectedOutput
from tapml.verdicts.judge import flushed_below
from tapml.verdicts.policy import Policy
from tapml_targets.dtype import dtype as lookup
from tapml_targets.float_formats import Float64s, as_float64, float_format, ulp

Array = NDArray[Any]


@dataclass(frozen=True)
class Distance:
    """The distance between two implementations on one output.

    Attributes
    ----------
    distance
        Largest difference in units; infinite for a NaN, or a wrong discrete value.
    index
        Its position.
    beyond
        Number of elements beyond the limit.
    """

    distance: float
    index: tuple[int, ...]
    beyond: int


@dataclass(frozen=True)
class BitDistance:
    """The number of elements that differ in a bit, and their largest distance in ulp."""

    elements: int
    max_ulps: float


def bit_distance(first: Array, second: Array, dtype: str) -> BitDistance:
    """Compare two raw outputs bitwise; all NaNs are equal.

    >>> one = np.array([1.0, 2.0, np.nan], np.float32)
    >>> bit_distance(one, np.nextafter(one, np.float32(9)), "float32")
    BitDistance(elements=2, max_ulps=1.0)
    """
    bits = np.dtype(f"u{first.dtype.itemsize}")
    one, other = first.reshape(-1), second.reshape(-1)
    places = np.flatnonzero(one.view(bits) != other.view(bits))
    if not lookup(dtype).is_float or not places.size:
        return BitDistance(int(places.size), 0.0)
    one, other = one[places], other[places]
    with np.errstate(all="ignore"):
        numbers, others = as_float64(one, dtype), as_float64(other, dtype)
        steps = np.abs(_ordered(one.view(bits)) - _ordered(other.view(bits)))
    # The distance from a number to a NaN or an infinity is infinite.
    steps[~(np.isfinite(numbers) & np.isfinite(others))] = np.inf
    differ = ~(np.isnan(numbers) & np.isnan(others))
    return BitDistance(int(differ.sum()), float(steps[differ].max(initial=0.0)))


def _ordered(bits: Array) -> Float64s:
    """Bit patterns of floats as numbers in the order of the floats."""
    width = 8 * bits.dtype.itemsize
    sign = bits.dtype.type(1 << (width - 1))
    size = (bits & ~sign).astype(np.float64)
    ordered: Float64s = np.where(bits & sign, -size, size)
    return ordered


def distance_between(
    want: ExpectedOutput, first: Array, second: Array, limit: float, policy: Policy
) -> Distance:
    """The distance between two raw outputs; counts elements beyond `limit`.

    Integers, indices and predicates are infinitely distant if they differ and at least one of them
    is wrong according to float64.
    """
    if not want.is_float:
        differs = np.asarray(first != second)
        wrong = wrong_elements(want, first) | wrong_elements(want, second)
        units: Float64s = np.where(differs & wrong, np.inf, 0.0)
    else:
        units = _units(want, as_float64(first, want.dtype), as_float64(second, want.dtype))
        if want.dtype in policy.flushes_subnormals:
            _allow_flushing(units, want, first, second, limit)
    if not units.size:
        return Distance(0.0, (), 0)
    place = int(np.argmax(units))
    index = tuple(int(i) for i in np.unravel_index(place, units.shape))
    return Distance(float(units.reshape(-1)[place]), index, int((units > limit).sum()))


def units_from(want: ExpectedOutput, raw: Array, index: tuple[int, ...]) -> float:
    """Distance of one element from float64, in units; infinite for a wrong discrete value."""
    if not want.is_float:
        return math.inf if bool(wrong_elements(want, raw)[index]) else 0.0
    expected = np.asarray(want.values[index], np.float64)
    got = np.asarray(as_float64(raw, want.dtype)[index])
    return float(
        _element_distances(expected, got, expected, np.asarray(want.scale[index]), want.dtype)
    )


def group_agreeing(
    labels: Sequence[str], distances: dict[tuple[str, str], float], limit: float
) -> list[list[str]]:
    """Group labels so that all pairs in a group are within `limit`; largest group first.

    >>> group_agreeing(["a", "b", "c"], {("a", "b"): 9.0, ("b", "c"): 9.0}, 1.0)
    [['a', 'c'], ['b']]
    """
    groups: list[list[str]] = []
    for label in labels:
        for group in groups:
            pairs = ((min(label, each), max(label, each)) for each in group)
            if all(distances.get(pair, 0.0) <= limit for pair in pairs):
                group.append(label)
                break
        else:
            groups.append([label])
    return sorted(groups, key=len, reverse=True)


def _units(want: ExpectedOutput, one: Float64s, other: Float64s) -> Float64s:
    return _element_distances(
        one, other, np.asarray(want.values, np.float64), want.scale, want.dtype
    )


def _element_distances(
    one: Float64s, other: Float64s, expected: Float64s, scale: Float64s, dtype: str
) -> Float64s:
    """Elementwise difference in units; NaN matches NaN and infinity matches itself."""
    with np.errstate(all="ignore"):
        error: Float64s = np.abs(np.asarray(one - other))
        infinite = np.isinf(one) | np.isinf(other)
        same_sign = np.signbit(one) == np.signbit(other)
        finite = np.where(np.isinf(one), other, one)
        room = np.maximum(0.0, float_format(dtype).max_finite - np.abs(finite))
        # If float64 is infinite, too, a finite number is wrong.
        near = same_sign & np.isfinite(expected)
        error = np.where(infinite, np.where(near, room, np.inf), error)
        error = np.where(one == other, 0.0, error)
        nan_one, nan_other = np.isnan(one), np.isnan(other)
        error = np.where(nan_one != nan_other, np.inf, error)
        error = np.where(nan_one & nan_other, 0.0, error)
        # If float64 is NaN or overflows, its scale is not finite: use the ulp of the number.
        unit = np.where(np.isfinite(scale), scale, ulp(np.nan_to_num(np.abs(finite)), dtype))
        return np.asarray(error / unit)


def _allow_flushing(
    units: Float64s, want: ExpectedOutput, first: Array, second: Array, limit: float
) -> None:
    """Set the distance to zero, in place, if one implementation only flushed subnormals."""
    with np.errstate(all="ignore"):
        error = np.abs(as_float64(first, want.dtype) - as_float64(second, want.dtype))
        units[(units > limit) & (error < flushed_below(want))] = 0.0
