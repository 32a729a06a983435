"""Values become simpler by levels, and only where the failure allows."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tapml.reduce.device import ReopeningDevice
from tapml.reduce.search import Search
from tapml.reduce.trials import Candidate, Trials
from tapml.reduce.values import count_long, count_nonzero, encode, shortened, simplify_values
from tapml.verdicts.policy import Policy
from tapml_targets.float_formats import as_float64
from tests.compiler.operators import matmul_transposed
from tests.reduce.planted import inputs, library


def test_values_become_simple_wherever_the_failure_allows_and_nowhere_else(
    device: ReopeningDevice,
) -> None:
    """The kernel is wrong if its first input begins with 1.2345, whatever else it reads."""
    trials = Trials(matmul_transposed(), library("this very number"), Policy(), device)
    x, w = inputs(rows=2)
    x[0, 0] = 1.2345
    whole = Candidate((x, w), {})
    first = trials.run(whole)
    assert first is not None
    search = Search(trials, whole, first, first.verdict)
    simplify_values(search)
    assert search.best.inputs[0][0, 0] == np.float32(1.2345)
    assert count_nonzero(search.best.inputs) == 1
    assert search.result.verdict.status == "fail"


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 3))
@example(5e-324, 1)
@example(2.2e-308, 3)
@example(sys.float_info.max, 1)
def test_fewer_digits_keep_every_finite_number_finite_and_near(number: float, digits: int) -> None:
    short = float(shortened(np.array([number]), digits)[0])
    assert np.isfinite(short)
    assert abs(short - number) <= abs(number) * 0.5001 * 10.0 ** (1 - digits) + 1e-308


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16", "float8_e4m3fn"])
def test_simple_values_survive_every_dtype(dtype: str) -> None:
    values = np.array([0.0, 1.0, -1.0, 0.5, 3.0, np.nan])
    np.testing.assert_array_equal(as_float64(encode(values, dtype), dtype), values)


def test_long_values_are_those_that_no_one_would_type() -> None:
    x = np.array([0, 1, -3, 0.5, 0.125, 0.1234567, 1234.5678, 7e-9], np.float32)
    assert count_nonzero((x,)) == 7
    assert count_long((x,), ("float32",)) == 2
    assert count_long((np.arange(5),), ("int64",)) == 0
