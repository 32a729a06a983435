"""Formats against independent references: numpy's own spacing, ml_dtypes' own conversions."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tapml_targets.errors import InputError
from tapml_targets.float_formats import as_float64, float_format, movable_ulp, ulp


@given(hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(width=32, allow_nan=False)))
def test_ulp_of_float32_is_numpys_spacing(values: np.ndarray) -> None:
    # numpy overflows at the largest finite number itself.
    finite = values[np.abs(values) < np.finfo(np.float32).max]
    expected = np.spacing(np.abs(finite)).astype(np.float64)
    np.testing.assert_array_equal(ulp(finite.astype(np.float64), "float32"), expected)


@given(hnp.arrays(np.float16, st.integers(1, 40), elements=st.floats(width=16, allow_nan=False)))
def test_ulp_of_float16_is_numpys_spacing(values: np.ndarray) -> None:
    finite = values[np.abs(values) < np.finfo(np.float16).max]
    expected = np.spacing(np.abs(finite)).astype(np.float64)
    np.testing.assert_array_equal(ulp(finite.astype(np.float64), "float16"), expected)


def test_ulp_of_float64_is_numpys_spacing_for_normal_numbers() -> None:
    values = np.array([1.0, -3.5, 1e300, 1e-290, 0.1])
    np.testing.assert_array_equal(ulp(values, "float64"), np.spacing(np.abs(values)))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("bfloat16", ml_dtypes.bfloat16),
        ("float8_e4m3fn", ml_dtypes.float8_e4m3fn),
        ("float8_e5m2", ml_dtypes.float8_e5m2),
    ],
)
def test_every_bit_pattern_widens_as_ml_dtypes_does(name: str, dtype: type) -> None:
    carrier = np.uint16 if name == "bfloat16" else np.uint8
    patterns = np.arange(np.iinfo(carrier).max + 1).astype(carrier)
    with np.errstate(invalid="ignore"):
        expected = patterns.view(dtype).astype(np.float64)
    np.testing.assert_array_equal(as_float64(patterns, name), expected)
    assert float_format(name).max_finite == float(ml_dtypes.finfo(dtype).max)
    assert float_format(name).epsilon == float(ml_dtypes.finfo(dtype).eps)
    assert float_format(name).smallest_normal == float(ml_dtypes.finfo(dtype).smallest_normal)


def test_zeros_and_non_finite_values_are_not_perturbed() -> None:
    values = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0])
    assert movable_ulp(values, "float32").tolist() == [0, 0, 0, 0, 0, 2.0**-23]


def test_raw_bits_of_the_wrong_carrier_are_refused() -> None:
    with pytest.raises(InputError, match="bfloat16 tensor travels as numpy uint16, got float32"):
        as_float64(np.zeros(3, np.float32), "bfloat16")


def test_an_integer_dtype_has_no_floating_point_format() -> None:
    with pytest.raises(InputError, match="no floating-point format 'int32'"):
        float_format("int32")
