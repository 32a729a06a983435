"""Errors counted in units of (sensitivity + ulp)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapml.compare.expectation import ExpectedOutput
from tapml.compare.formats import Float64s, as_float64, float_format


def float_errors(want: ExpectedOutput, got: Float64s) -> Float64s:
    """Error of each element in units of ``want.scale``, shape of the output.

    NaN and Inf match in place. Inf against finite counts how far float64 is from overflowing:
    within its rounding both are honest. What cannot be reconciled is Inf.
    """
    with np.errstate(all="ignore"):
        error: Float64s = np.asarray(np.subtract(got, want.values))
        np.abs(error, out=error)
        if not math.isfinite(float(error.sum())):
            _reconcile(error, want, got)
        error /= want.scale
    return error


def _reconcile(error: Float64s, want: ExpectedOutput, got: Float64s) -> None:
    """Replace the errors at NaN and Inf, in place."""
    expected = want.values
    largest = float_format(want.dtype).max_finite
    nan_expected, nan_actual = np.isnan(expected), np.isnan(got)
    infinite = np.isinf(got)
    same_sign = np.signbit(got) == np.signbit(expected)
    distance = np.maximum(0.0, largest - np.abs(expected))
    error[infinite] = np.where(same_sign, distance, np.inf)[infinite]
    # float64 overflows too: the only honest answer is the same Inf.
    error[np.isinf(expected)] = np.inf
    error[infinite & (got == expected)] = 0.0
    error[nan_expected != nan_actual] = np.inf
    error[nan_expected & nan_actual] = 0.0


def worst_ratio(want: ExpectedOutput, raw: NDArray[Any]) -> float:
    """Largest error of a floating-point output's raw bits in units of ``want.scale``."""
    ratios = float_errors(want, as_float64(raw, want.dtype))
    return float(ratios.max(initial=0.0))
