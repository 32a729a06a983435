"""Describes the errors in a tensor as text: counts, pattern, indices per axis, worst elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.failures.places import patterns_of
from tapml.verdicts.discrete import wrong_elements
from tapml.verdicts.expectation import ExpectedOutput, float_errors
from tapml.verdicts.metrics import measure
from tapml_targets.float_formats import as_float64

_SHOWN: Final = 20
_RANGES: Final = 8


def describe_errors(want: ExpectedOutput, raw: NDArray[Any], passing: float) -> str:
    """Describe the errors of one output.

    Parameters
    ----------
    want
        The float64 output and its sensitivity.
    raw
        The target's output, raw bits.
    passing
        The largest ratio of a correct element.
    """
    lines = [f"output {want.name}: {want.dtype}{list(raw.shape)}, {want.kind}"]
    if want.is_float:
        got = as_float64(raw, want.dtype)
        ratios = float_errors(want, got)
        wrong = ratios > passing
        numbers = measure(want.values, got, want.dtype)
        lines += [
            f"largest error {numbers.max_absolute:.6g} absolute, {numbers.max_relative:.6g} "
            f"relative, {numbers.max_ulp:.6g} ulp; root mean square {numbers.rms_absolute:.6g}",
            f"cosine {numbers.cosine:.9f}; NaN mismatches {numbers.nan_mismatches}, Inf out of "
            f"mismatches {numbers.infinity_mismatches}",
            "errors in ulp: " + _histogram(numbers.histogram),
        ]
    else:
        got = raw
        wrong = wrong_elements(want, raw)
        ratios = wrong.astype(np.float64)
    lines.append(f"{int(wrong.sum())} of {wrong.size} elements are wrong")
    if wrong.any():
        lines += [f"  {pattern.sentence}" for pattern in patterns_of(wrong)]
        lines += _along_axes(wrong)
        lines.append("the worst elements (index: expected, actual, ratio):")
        order = np.argsort(-np.where(wrong, ratios, -1.0), axis=None, kind="stable")[:_SHOWN]
        for flat in order:
            index = tuple(int(i) for i in np.unravel_index(int(flat), wrong.shape))
            if not wrong[index]:
                break
            lines.append(
                f"  {list(index)}: {want.values[index]!s}, {got[index]!s}, {ratios[index]:.4g}"
            )
    return "\n".join(lines) + "\n"


def _along_axes(wrong: NDArray[np.bool_]) -> list[str]:
    """The indices per axis with errors, as ranges: shows a tail or a stride."""
    lines = []
    for axis in range(wrong.ndim):
        others = tuple(other for other in range(wrong.ndim) if other != axis)
        places = np.flatnonzero(wrong.any(axis=others))
        if len(places) == wrong.shape[axis]:
            lines.append(f"  axis {axis}: everywhere (0..{wrong.shape[axis] - 1})")
        else:
            lines.append(f"  axis {axis}: {_ranges(places)} of 0..{wrong.shape[axis] - 1}")
    return lines


def _ranges(places: NDArray[np.intp]) -> str:
    """Sorted indices as ``3, 5..7, 9``."""
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    texts = [str(r[0]) if len(r) == 1 else f"{r[0]}..{r[-1]}" for r in runs[:_RANGES]]
    more = f", and {len(runs) - _RANGES} more runs" if len(runs) > _RANGES else ""
    return ", ".join(texts) + more


def _histogram(counts: Sequence[int]) -> str:
    """The nonzero counts, by the upper end of their bin in ulp."""
    parts = []
    for position, count in enumerate(counts):
        if count:
            name = "exact" if position == 0 else f"<= {2.0 ** (position - 2):g}"
            parts.append(f"{name}: {count}")
    return ", ".join(parts) or "none"
