"""Error metrics of one output against its float64 value, for reports and error maps.

None of these is a verdict. A relative error of 4e-4 is right for a dot product that cancels to
nearly zero and wrong for a copy; :mod:`tapml.verdicts.judge` decides with the sensitivity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tapml_targets.float_formats import Float64s, ulp

HISTOGRAM_BINS: Final = 32
"""Bin 0 counts exact elements, bin i errors in (2**(i-3), 2**(i-2)] ulp; the last is open."""


@dataclass(frozen=True)
class Metrics:
    """Errors of one output, over its elements.

    Attributes
    ----------
    elements
        How many there are.
    max_absolute, max_relative, max_ulp
        Largest error: absolute, over the expected magnitude, in units in the last place of the
        output's dtype at the expected value. Over elements that are finite on both sides.
    rms_absolute
        Root mean square error over the same elements.
    cosine
        Cosine of the angle between the two tensors; 1.0 if both are zero.
    nan_mismatches, infinity_mismatches
        Elements that are NaN (Inf of one sign) on one side only.
    worst_index
        Position of the first NaN or Inf mismatch, else of the largest error.
    worst_expected, worst_actual
        The two values there.
    histogram
        Counts per power of two of the error in ulp, see ``HISTOGRAM_BINS``.
    """

    elements: int
    max_absolute: float
    max_relative: float
    max_ulp: float
    rms_absolute: float
    cosine: float
    nan_mismatches: int
    infinity_mismatches: int
    worst_index: tuple[int, ...]
    worst_expected: float
    worst_actual: float
    histogram: tuple[int, ...]


def measure(expected: Float64s, actual: Float64s, dtype: str) -> Metrics:
    """Measure `actual` against `expected`, two float64 arrays of one shape.

    `dtype` names the floating-point format the output is stored in; its ulp scales the histogram.
    """
    shape = expected.shape
    want, got = expected.reshape(-1), actual.reshape(-1)
    if want.size == 0:
        return Metrics(0, 0.0, 0.0, 0.0, 0.0, 1.0, 0, 0, (), 0.0, 0.0, (0,) * HISTOGRAM_BINS)
    with np.errstate(all="ignore"):
        nan_differs = np.isnan(want) != np.isnan(got)
        infinite = np.isinf(want) | np.isinf(got)
        infinity_differs = infinite & (want != got) & ~nan_differs
        both = np.isfinite(want) & np.isfinite(got)
        error = np.where(both, np.abs(got - want), 0.0)
        in_ulp = error / ulp(want, dtype)
        relative = np.where(error > 0, error / np.abs(want), 0.0)
        differs = nan_differs | infinity_differs
        worst = int(np.argmax(differs)) if differs.any() else int(np.argmax(error))
        return Metrics(
            elements=int(want.size),
            max_absolute=float(error.max()),
            max_relative=float(relative.max()),
            max_ulp=float(in_ulp.max()),
            rms_absolute=float(np.sqrt(np.mean(np.square(error)))),
            cosine=_cosine(want[both], got[both]),
            nan_mismatches=int(nan_differs.sum()),
            infinity_mismatches=int(infinity_differs.sum()),
            worst_index=tuple(int(i) for i in np.unravel_index(worst, shape)),
            worst_expected=float(want[worst]),
            worst_actual=float(got[worst]),
            histogram=_histogram(in_ulp[both]),
        )


def _cosine(want: Float64s, got: Float64s) -> float:
    """Cosine of the angle between two vectors, scaled first so that no square overflows."""
    largest = max(float(np.max(np.abs(want), initial=0.0)), float(np.max(np.abs(got), initial=0.0)))
    if largest == 0.0:
        return 1.0
    want, got = want / largest, got / largest
    lengths = float(np.linalg.norm(want) * np.linalg.norm(got))
    if lengths == 0.0:
        return 0.0
    return float(np.clip(np.dot(want, got) / lengths, -1.0, 1.0))


def _histogram(in_ulp: Float64s) -> tuple[int, ...]:
    """Counts of errors per power of two of their size in ulp."""
    # frexp gives error = m * 2**e with m in [0.5, 1): a power of two itself belongs one bin lower.
    mantissa, exponent = np.frexp(in_ulp)
    exponent = np.where(mantissa == 0.5, exponent - 1, exponent)
    bins = np.where(in_ulp == 0, 0, np.clip(exponent + 2, 1, HISTOGRAM_BINS - 1))
    return tuple(int(n) for n in np.bincount(bins, minlength=HISTOGRAM_BINS))
