"""How far the outputs of several implementations lie from one another, in units and in bits.

The unit is that of verdicts: sensitivity plus one ulp, of the operator's float64 twin. A right
kernel stays within a quarter of its limit, so two that run the same text and are further from one
another than the limit are not both right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapml.compare.discrete import wrong_elements
from tapml.compare.expectation import ExpectedOutput
from tapml.compare.formats import Float64s, as_float64, float_format, ulp
from tapml.compare.judge import flushed_below
from tapml.compare.policy import Policy
from tapml_targets.dtype import dtype as lookup

Array = NDArray[Any]


@dataclass(frozen=True)
class Apart:
    """Two implementations on one output.

    Attributes
    ----------
    distance
        Largest difference in units; Inf where no number of units reconciles them.
    index
        Where it is.
    beyond
        Elements further apart than the limit.
    """

    distance: float
    index: tuple[int, ...]
    beyond: int


@dataclass(frozen=True)
class BitDistance:
    """The same in bits: how many elements differ, and by how many ulp at most."""

    elements: int
    max_ulps: float


def bit_distance(first: Array, second: Array, dtype: str) -> BitDistance:
    """How two raw outputs differ bit for bit; NaNs are all alike."""
    bits = np.dtype(f"u{first.dtype.itemsize}")
    one, other = first.reshape(-1), second.reshape(-1)
    places = np.flatnonzero(one.view(bits) != other.view(bits))
    if not lookup(dtype).is_float or not places.size:
        return BitDistance(int(places.size), 0.0)
    one, other = one[places], other[places]
    with np.errstate(all="ignore"):
        numbers, others = as_float64(one, dtype), as_float64(other, dtype)
        steps = np.abs(_ordered(one.view(bits)) - _ordered(other.view(bits)))
    # From a number to a NaN or an infinity there is no number of steps.
    steps[~(np.isfinite(numbers) & np.isfinite(others))] = np.inf
    differ = ~(np.isnan(numbers) & np.isnan(others))
    return BitDistance(int(differ.sum()), float(steps[differ].max(initial=0.0)))


def _ordered(bits: Array) -> Float64s:
    """Bit patterns of floats as numbers that follow one another as the floats do."""
    width = 8 * bits.dtype.itemsize
    sign = bits.dtype.type(1 << (width - 1))
    size = (bits & ~sign).astype(np.float64)
    ordered: Float64s = np.where(bits & sign, -size, size)
    return ordered


def apart(want: ExpectedOutput, first: Array, second: Array, limit: float, policy: Policy) -> Apart:
    """How far two raw outputs lie apart, held against `limit`.

    Integers, indices and predicates are apart where they differ and one of them, or both, is what
    float64 does not allow.
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
        return Apart(0.0, (), 0)
    place = int(np.argmax(units))
    index = tuple(int(i) for i in np.unravel_index(place, units.shape))
    return Apart(float(units.reshape(-1)[place]), index, int((units > limit).sum()))


def units_from(want: ExpectedOutput, raw: Array, index: tuple[int, ...]) -> float:
    """How far one element lies from float64, in units; Inf where it is out of the question."""
    if not want.is_float:
        return math.inf if bool(wrong_elements(want, raw)[index]) else 0.0
    expected = np.asarray(want.values[index], np.float64)
    got = np.asarray(as_float64(raw, want.dtype)[index])
    return float(_apart(expected, got, expected, np.asarray(want.scale[index]), want.dtype))


def agreeing(
    labels: Sequence[str], distances: dict[tuple[str, str], float], limit: float
) -> list[list[str]]:
    """The labels in groups, in each of which all agree with all; large groups first."""
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
    return _apart(one, other, np.asarray(want.values, np.float64), want.scale, want.dtype)


def _apart(
    one: Float64s, other: Float64s, expected: Float64s, scale: Float64s, dtype: str
) -> Float64s:
    """Difference of two floats per element: NaN and Inf match in place, as for verdicts."""
    with np.errstate(all="ignore"):
        error: Float64s = np.abs(np.asarray(one - other))
        infinite = np.isinf(one) | np.isinf(other)
        same_sign = np.signbit(one) == np.signbit(other)
        finite = np.where(np.isinf(one), other, one)
        room = np.maximum(0.0, float_format(dtype).max_finite - np.abs(finite))
        # Where float64 is infinite, too, no finite number is honest.
        near = same_sign & np.isfinite(expected)
        error = np.where(infinite, np.where(near, room, np.inf), error)
        error = np.where(one == other, 0.0, error)
        nan_one, nan_other = np.isnan(one), np.isnan(other)
        error = np.where(nan_one != nan_other, np.inf, error)
        error = np.where(nan_one & nan_other, 0.0, error)
        # Where float64 itself is NaN or overflows there is no unit but the numbers' own.
        unit = np.where(np.isfinite(scale), scale, ulp(np.nan_to_num(np.abs(finite)), dtype))
        return np.asarray(error / unit)


def _allow_flushing(
    units: Float64s, want: ExpectedOutput, first: Array, second: Array, limit: float
) -> None:
    """One implementation may lose subnormals that another keeps: no difference, in place."""
    with np.errstate(all="ignore"):
        error = np.abs(as_float64(first, want.dtype) - as_float64(second, want.dtype))
        units[(units > limit) & (error < flushed_below(want))] = 0.0
