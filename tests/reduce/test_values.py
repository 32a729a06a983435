"""Values become simpler by levels, and only where the failure allows."""

from __future__ import annotations

import numpy as np
import pytest

from tapml.compare.formats import as_float64
from tapml.reduce.values import count_long, count_nonzero, encode


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16", "float8_e4m3fn"])
def test_simple_values_survive_every_dtype(dtype: str) -> None:
    values = np.array([0.0, 1.0, -1.0, 0.5, 3.0, np.nan])
    np.testing.assert_array_equal(as_float64(encode(values, dtype), dtype), values)


def test_long_values_are_those_that_no_one_would_type() -> None:
    x = np.array([0, 1, -3, 0.5, 0.125, 0.1234567, 1234.5678, 7e-9], np.float32)
    assert count_nonzero((x,)) == 7
    assert count_long((x,), ("float32",)) == 2
    assert count_long((np.arange(5),), ("int64",)) == 0
