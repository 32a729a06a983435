"""Distances between two implementations: in units of the operator's float64, and in bits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tapml.matrix.distance import bit_distance, distance_between, group_agreeing, units_from
from tapml.verdicts.expectation import ExpectedOutput
from tapml.verdicts.policy import Policy

LIMIT = 16.0
INF, NAN = math.inf, math.nan


def expected(*values: float, dtype: str = "float32") -> ExpectedOutput:
    """An output whose unit is one ulp."""
    return ExpectedOutput(
        "output_0", dtype, "value", np.array(values), np.zeros(len(values), np.float32)
    )


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("float64", "one", "other", "units"),
    [
        (1.0, 1.0, 1.0, 0.0),
        (1.0, 1.0, 1.0 + 2**-19, 16.0),
        (1.0, 1.0 - 2**-20, 1.0 + 2**-20, 16.0),
        (1.0, NAN, NAN, 0.0),
        (1.0, NAN, 1.0, INF),
        (INF, INF, INF, 0.0),
        (INF, INF, 3e38, INF),
        (-INF, -INF, -88.0, INF),
        (3.4e38, INF, -INF, INF),
        (NAN, NAN, 1.0, INF),
    ],
)
def test_units_between_two_floats(float64: float, one: float, other: float, units: float) -> None:
    found = distance_between(expected(float64), floats(one), floats(other), LIMIT, Policy())
    assert found.distance == units
    assert found.beyond == int(units > LIMIT)


def test_near_overflow_infinity_and_a_finite_number_are_honest_both() -> None:
    largest = float(np.finfo(np.float32).max)
    found = distance_between(expected(largest), floats(largest), floats(INF), LIMIT, Policy())
    assert found.distance == 0


def test_the_farthest_element_is_named_and_those_beyond_are_counted() -> None:
    want = expected(1.0, 1.0, 1.0, 1.0)
    found = distance_between(want, floats(1, 1, 1, 1), floats(1, 1.5, 2, 1), LIMIT, Policy())
    assert (found.index, found.beyond) == ((2,), 2)
    assert units_from(want, floats(1, 1.5, 2, 1), (2,)) == 2**23


def test_a_subnormal_that_one_flushes_is_no_difference() -> None:
    want = expected(1e-40)
    assert distance_between(want, floats(1e-40), floats(0), LIMIT, Policy()).distance == 0


def test_integers_differ_where_float64_does_not_leave_both_open() -> None:
    want = ExpectedOutput(
        "output_0", "int32", "value", np.array([3, 4], np.int32), np.zeros(2, np.float32)
    )
    same, other = np.array([3, 4], np.int32), np.array([3, 5], np.int32)
    assert distance_between(want, same, same, 0.0, Policy()).distance == 0
    assert distance_between(want, same, other, 0.0, Policy()).index == (1,)


def test_bits_are_counted_in_ulp_across_zero_and_nans_are_all_alike() -> None:
    one, other = floats(1, -1e-45, NAN, 0), floats(1 + 2**-23, 1e-45, NAN, 0)
    found = bit_distance(one, other, "float32")
    assert (found.elements, found.max_ulps) == (2, 2.0)
    assert bit_distance(floats(0), floats(-0.0), "float32").max_ulps == 0
    assert bit_distance(floats(1), floats(NAN), "float32").max_ulps == INF
    negative = floats(NAN).view(np.uint32) | np.uint32(1 << 31)
    assert bit_distance(floats(NAN), negative.view(np.float32), "float32").elements == 0


def test_who_agrees_with_all_of_a_group_is_in_it() -> None:
    distances = {("a", "b"): 1.0, ("a", "c"): 20.0, ("b", "c"): 20.0}
    assert group_agreeing(["c", "a", "b"], distances, LIMIT) == [["a", "b"], ["c"]]
    chain = {("a", "b"): 10.0, ("b", "c"): 10.0, ("a", "c"): 20.0}
    assert group_agreeing(["a", "b", "c"], chain, LIMIT) == [["a", "b"], ["c"]]
