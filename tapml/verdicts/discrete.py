"""Verdicts on outputs that are not real numbers: integers, indices, codes and predicates.

They must match exactly, unless float64 itself is undecided: its result changed when the inputs were
perturbed by one unit in the last place. An index is right if it points at the right value.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapml.verdicts.expectation import ExpectedOutput
from tapml.verdicts.index_source import IndexSource
from tapml.verdicts.verdict import OutputNumbers
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import InputError


def judge_discrete(want: ExpectedOutput, got: NDArray[Any]) -> OutputNumbers:
    """Numbers and status of one integer or boolean output.

    Raises
    ------
    InputError
        If `got` does not have the numpy dtype that carries the output.
    """
    carrier = np.dtype(lookup(want.dtype).numpy_name)
    if got.dtype != carrier:
        raise InputError(f"output {want.name!r}: expected numpy {carrier}, got {got.dtype}")
    wrong = wrong_elements(want, got)
    count = int(wrong.sum())
    differing = int((got != want.values).sum())
    worst = int(np.argmax(wrong)) if count else 0
    index = tuple(int(i) for i in np.unravel_index(worst, got.shape)) if got.size else ()
    expected = float(want.values[index]) if got.size else 0.0
    actual = float(got[index]) if got.size else 0.0
    return OutputNumbers(
        name=want.name,
        kind=want.kind,
        dtype=want.dtype,
        elements=int(got.size),
        status="fail" if count else "pass",
        ratio=math.inf if count else 0.0,
        rms_ratio=0.0,
        reference_ratio=want.reference_ratio,
        passing=0.0,
        degraded=0.0,
        over=count,
        index=index,
        expected=expected,
        actual=actual,
        scale=0.0,
        nan_mismatches=0,
        infinity_mismatches=0,
        flushed=0,
        reason=_reason(want, index, count, differing, int(got.size)),
    )


def wrong_elements(want: ExpectedOutput, got: NDArray[Any]) -> NDArray[np.bool_]:
    """Mask, in the output's shape, of the elements that float64 does not allow."""
    differs = np.asarray(got != want.values)
    if not differs.any():
        return differs
    if want.source is not None:
        return _wrong_indices(want, got, want.source)
    if want.kind == "value" and lookup(want.dtype).name != "bool":
        return differs
    # float64 is exact up to 2**53, far more than the changes that are allowed here.
    change = np.abs(got.astype(np.float64) - want.values.astype(np.float64))
    allowed = want.sensitivity.astype(np.float64)
    # Integers that are state are codes: a quantized cache.
    if want.kind in ("code", "state"):
        allowed = np.minimum(allowed, 1.0)
    return np.asarray(differs & ((change > allowed) | (allowed == 0)))


def _wrong_indices(
    want: ExpectedOutput, got: NDArray[Any], source: IndexSource
) -> NDArray[np.bool_]:
    """Indices out of range, repeated along the axis, or pointing at another value than the best.

    Inputs are exact, so only equal values tie, without tolerance.
    """
    extent = source.values.shape[source.axis]
    outside = np.asarray((got < 0) | (got >= extent))
    safe = np.where(outside, 0, got).astype(np.int64)
    wanted = source.gather(want.values.astype(np.int64))
    found = source.gather(safe)
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    wrong: NDArray[np.bool_] = outside | ~same
    if not source.drops_axis and got.shape[source.axis] > 1:
        wrong |= _repeated(safe, source.axis)
    return wrong


def _repeated(indices: NDArray[np.int64], axis: int) -> NDArray[np.bool_]:
    """Whether an index occurs more than once along `axis`, per element."""
    order = np.argsort(indices, axis=axis, kind="stable")
    ranked = np.take_along_axis(indices, order, axis)
    same = np.diff(ranked, axis=axis) == 0
    edge = np.zeros_like(np.take(same, [0], axis))
    repeated = np.concatenate([same, edge], axis) | np.concatenate([edge, same], axis)
    result = np.zeros(repeated.shape, np.bool_)
    np.put_along_axis(result, order, repeated, axis)
    return result


def _reason(
    want: ExpectedOutput, index: tuple[int, ...], count: int, differing: int, elements: int
) -> str:
    if count:
        place = f"{want.name}[{', '.join(map(str, index))}]"
        return (
            f"{count} of {elements} {want.dtype} elements ({want.kind}) are wrong, the first at "
            f"{place}: expected {want.values[index]!s}"
        )
    if differing:
        return (
            f"{want.name}: {differing} of {elements} elements differ where float64 is undecided "
            "(a tie, or a rounding boundary), which is allowed"
        )
    return f"{want.name}: all {elements} {want.dtype} elements are equal"
