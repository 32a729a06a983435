"""Error numbers against plain Python arithmetic."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tapml.verdicts.metrics import HISTOGRAM_BINS, measure
from tapml_targets.float_formats import ulp

ordinary = st.floats(-1e6, 1e6, allow_nan=False).filter(lambda x: x == 0 or abs(x) > 1e-6)
pairs = hnp.array_shapes(min_dims=1, max_dims=3, max_side=5).flatmap(
    lambda shape: st.tuples(
        hnp.arrays(np.float64, shape, elements=ordinary),
        hnp.arrays(np.float64, shape, elements=ordinary),
    )
)


@given(pairs)
def test_numbers_are_those_of_plain_arithmetic(pair: tuple[np.ndarray, np.ndarray]) -> None:
    want, got = pair
    numbers = measure(want, got, "float32")
    errors = [abs(g - w) for w, g in zip(want.flat, got.flat, strict=True)]
    assert numbers.max_absolute == max(errors)
    rms = math.sqrt(math.fsum(e * e for e in errors) / len(errors))
    assert math.isclose(numbers.rms_absolute, rms, rel_tol=1e-12, abs_tol=1e-300)
    relative = [e / abs(w) if w else math.inf for e, w in zip(errors, want.flat, strict=True) if e]
    assert math.isclose(numbers.max_relative, max(relative, default=0.0), rel_tol=1e-12)
    assert errors[int(np.ravel_multi_index(numbers.worst_index, want.shape))] == max(errors)
    assert sum(numbers.histogram) == numbers.elements == want.size


@given(hnp.arrays(np.float64, 7, elements=ordinary))
def test_equal_tensors_have_no_error(values: np.ndarray) -> None:
    numbers = measure(values, values, "float32")
    assert (numbers.max_absolute, numbers.max_ulp, numbers.max_relative) == (0.0, 0.0, 0.0)
    assert numbers.cosine > 1 - 1e-12
    assert numbers.histogram[0] == 7


def test_histogram_bins_are_powers_of_two_of_an_ulp() -> None:
    want = np.ones(6)
    unit = float(ulp(np.array([1.0]), "float32")[0])
    got = want + unit * np.array([0.0, 0.2, 0.5, 1.0, 1.5, 2.0**40])
    histogram = measure(want, got, "float32").histogram
    assert [i for i, n in enumerate(histogram) for _ in range(n)] == [
        0, 1, 1, 2, 3, HISTOGRAM_BINS - 1,
    ]  # fmt: skip


def test_nan_and_infinity_are_counted_where_they_do_not_match() -> None:
    want = np.array([np.nan, np.nan, np.inf, np.inf, -np.inf, 1.0, 2.0])
    got = np.array([np.nan, 1.0, np.inf, -np.inf, 3.0, np.nan, 2.5])
    numbers = measure(want, got, "float32")
    assert (numbers.nan_mismatches, numbers.infinity_mismatches) == (2, 2)
    assert numbers.worst_index == (1,)
    assert numbers.max_absolute == 0.5


def test_cosine_survives_values_whose_squares_overflow() -> None:
    huge = np.array([1e200, 1e200])
    assert measure(huge, huge, "float64").cosine > 1 - 1e-12
    assert abs(measure(np.array([1.0, 0.0]), np.array([0.0, 1.0]), "float32").cosine) < 1e-12


def test_an_empty_output_has_no_error() -> None:
    assert measure(np.zeros((0, 3)), np.zeros((0, 3)), "float32").elements == 0
