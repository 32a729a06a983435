"""From numbers to a verdict (DESIGN.md, Verdicts; section III-D of the paper: F(I) = O).

A floating-point output is held against its float64 value in units of (sensitivity + ulp). Integers,
booleans and indices are held to what float64 allows: exact, but where the float64 result itself
changes when the inputs move by one unit in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tapml.compare.discrete import judge_discrete
from tapml.compare.expectation import Expectation, ExpectedOutput
from tapml.compare.formats import Float64s, as_float64, float_format
from tapml.compare.metrics import measure
from tapml.compare.policy import ChosenLimits, Policy, RatioLimits
from tapml.compare.verdict import OutputNumbers, Status, Suspect, Verdict, worse
from tapml_targets.errors import InputError


class Named(Protocol):
    """Whatever is judged: a GraphPlan operator, or its name and hash from a repro folder."""

    @property
    def name(self) -> str:
        """The operator's name, matched by policy overrides."""


def judge(
    operator: Named,
    expectation: Expectation,
    reference: Sequence[NDArray[Any]] | None,
    actual: Sequence[NDArray[Any]],
    policy: Policy,
    *,
    detailed: bool = False,
) -> Verdict:
    """The verdict on one test's outputs.

    Parameters
    ----------
    operator
        The operator under test.
    expectation
        Its float64 outputs and sensitivities, from the oracle.
    reference
        The reference platform's outputs (raw bits), in the order of ``operator.written``; they
        decide whether a doubtful result is the target's alone. None where there are none.
    actual
        The target's outputs (raw bits), in the same order and with the same shapes.
    policy
        The limits.
    detailed
        Add :class:`~tapml.compare.metrics.Metrics` to passing outputs too.

    Raises
    ------
    InputError
        If the outputs' number, shapes or dtypes are not the expected ones.
    """
    if len(actual) != len(expectation.outputs):
        raise InputError(
            f"{operator.name}: expected {len(expectation.outputs)} outputs, got {len(actual)}"
        )
    numbers = []
    suspects = set()
    for position, (want, got) in enumerate(zip(expectation.outputs, actual, strict=True)):
        if got.shape != want.values.shape:
            raise InputError(
                f"{operator.name}: output {want.name!r} has shape {got.shape}, "
                f"expected {want.values.shape}"
            )
        if want.is_float:
            limits = choose_limits(policy, operator.name, want, expectation.terms).limits
            output = _judge_float(want, got, limits, policy, detailed)
        else:
            output = judge_discrete(want, got)
        known = None if reference is None else reference[position]
        output, suspect = _share_blame(output, want, known, got, policy)
        numbers.append(output)
        suspects.add(suspect)
    return _summarise(numbers, suspects)


def choose_limits(policy: Policy, operator: str, want: ExpectedOutput, terms: int) -> ChosenLimits:
    """The limits of one floating-point output, and where in the policy they come from."""
    return policy.choose(
        operator,
        want.dtype,
        terms,
        operator_class=want.operator_class,
        arithmetic=want.arithmetic,
        output=want.name,
    )


def float_errors(want: ExpectedOutput, got: Float64s) -> Float64s:
    """Error of each element in units of ``want.scale``, shape of the output.

    NaN and Inf match in place. Inf against finite counts how far float64 is from overflowing:
    within its rounding both are honest. What cannot be reconciled is Inf.
    """
    with np.errstate(all="ignore"):
        error: Float64s = np.subtract(got, want.values)
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


def _judge_float(
    want: ExpectedOutput, raw: NDArray[Any], limits: RatioLimits, policy: Policy, detailed: bool
) -> OutputNumbers:
    got = as_float64(raw, want.dtype)
    ratios = float_errors(want, got)
    ratio = float(ratios.max(initial=0.0))
    flushed = 0
    if ratio > limits.passing and want.dtype in policy.flushes_subnormals:
        flushed = _accept_flushed(ratios, want, got, limits.passing)
        ratio = float(ratios.max(initial=0.0))
    status = _status(ratio, limits)
    worst = int(np.argmax(ratios)) if ratios.size else 0
    index = tuple(int(i) for i in np.unravel_index(worst, raw.shape)) if raw.size else ()
    nan_mismatches = infinity_mismatches = over = 0
    if status != "pass":
        nan_mismatches = int((np.isnan(want.values) != np.isnan(got)).sum())
        infinity_mismatches = int(np.isinf(ratios).sum()) - nan_mismatches
        over = int((ratios > limits.passing).sum())
    with np.errstate(all="ignore"):
        flat = ratios.reshape(-1)
        rms_ratio = math.sqrt(float(np.dot(flat, flat)) / max(1, flat.size))
    metrics = None
    if detailed or status != "pass":
        metrics = measure(want.values, got, want.dtype)
    expected, actual, scale = (
        (float(want.values[index]), float(got[index]), float(want.scale[index]))
        if raw.size
        else (0.0, 0.0, 0.0)
    )
    numbers = _Arithmetic(expected, actual, scale, index, over, int(raw.size))
    return OutputNumbers(
        name=want.name,
        kind=want.kind,
        dtype=want.dtype,
        elements=int(raw.size),
        status=status,
        ratio=ratio,
        rms_ratio=rms_ratio,
        reference_ratio=want.reference_ratio,
        passing=limits.passing,
        degraded=limits.degraded,
        over=over,
        index=index,
        expected=expected,
        actual=actual,
        scale=scale,
        nan_mismatches=nan_mismatches,
        infinity_mismatches=infinity_mismatches,
        flushed=flushed,
        reason=_float_reason(want.name, ratio, limits, numbers, flushed),
        metrics=metrics,
    )


@dataclass(frozen=True)
class _Arithmetic:
    """The worst element, for the sentence about it."""

    expected: float
    actual: float
    scale: float
    index: tuple[int, ...]
    over: int
    elements: int


def _accept_flushed(ratios: Float64s, want: ExpectedOutput, got: Float64s, limit: float) -> int:
    """Zero the ratios of errors below the smallest normal number; returns how many.

    A device that flushes subnormals loses them in intermediates too: the result need not be zero.
    """
    smallest = float_format(want.dtype).smallest_normal
    with np.errstate(all="ignore"):
        flushed = (ratios > limit) & (np.abs(got - want.values) < smallest)
    ratios[flushed] = 0.0
    return int(flushed.sum())


def _status(ratio: float, limits: RatioLimits) -> Status:
    if ratio <= limits.passing:
        return "pass"
    return "degraded" if ratio <= limits.degraded else "fail"


def _float_reason(
    name: str, ratio: float, limits: RatioLimits, worst: _Arithmetic, flushed: int
) -> str:
    place = f"{name}[{', '.join(map(str, worst.index))}]"
    if math.isinf(ratio):
        text = (
            f"{place} is {worst.actual!r} where float64 gives {worst.expected!r}; "
            f"{worst.over} of {worst.elements} elements are wrong"
        )
    else:
        error = abs(worst.actual - worst.expected) if math.isfinite(worst.actual) else math.inf
        text = (
            f"worst error at {place}: |{worst.actual:.9g} - {worst.expected:.9g}| = {error:.3g}, "
            f"{ratio:.3g} times (sensitivity + ulp) = {worst.scale:.3g}; limit {limits.passing:.3g}"
        )
        if worst.over:
            text += f", exceeded by {worst.over} of {worst.elements} elements"
            if ratio <= limits.degraded:
                text += f", degraded up to {limits.degraded:.3g}"
    if flushed:
        text += f"; {flushed} errors are subnormal numbers, as flushing them gives, and allowed"
    return text


def _share_blame(
    output: OutputNumbers,
    want: ExpectedOutput,
    reference: NDArray[Any] | None,
    got: NDArray[Any],
    policy: Policy,
) -> tuple[OutputNumbers, Suspect]:
    """Whom an output accuses. Where the reference is as wrong, the target is not accused alone."""
    reference_is_off = want.reference_ratio > output.passing
    if output.status == "pass":
        return output, "reference" if reference_is_off else ""
    if not reference_is_off or reference is None:
        return output, "target"
    agree = _agree(want, reference, got, output, policy)
    note = (
        f"the reference is off by a ratio of {want.reference_ratio:.3g} itself"
        f"{' and agrees with the target' if agree else ''}"
    )
    values = {**output.__dict__, "reason": f"{output.reason}; {note}"}
    if agree:
        values["status"] = "degraded"
        return OutputNumbers(**values), "reference"
    return OutputNumbers(**values), "target and reference"


def _agree(
    want: ExpectedOutput,
    reference: NDArray[Any],
    got: NDArray[Any],
    output: OutputNumbers,
    policy: Policy,
) -> bool:
    """Whether target and reference err alike: float64 or the importer is then the odd one out.

    Alike means close to each other, or off by as much: an operator that loses digits in any
    float32 arithmetic loses different ones on every platform.
    """
    if not want.is_float:
        return bool(np.array_equal(reference, got))
    against_reference = ExpectedOutput(
        want.name, want.dtype, want.kind, as_float64(reference, want.dtype), want.sensitivity
    )
    mutual = worst_ratio(against_reference, got)
    alike = math.isfinite(output.ratio) and output.ratio <= 4.0 * want.reference_ratio
    return mutual <= output.passing or alike


def _summarise(outputs: Sequence[OutputNumbers], suspects: set[Suspect]) -> Verdict:
    """One verdict from the outputs' ones."""
    if not outputs:
        return Verdict("pass", 0.0, (), "the operator writes nothing")
    status: Status = "pass"
    for output in outputs:
        status = worse(status, output.status)
    gravest = max(outputs, key=lambda o: (o.status == status, o.ratio))
    worst = max(output.ratio for output in outputs)
    suspect = _join_suspects(suspects)
    reason = gravest.reason
    if status == "pass" and suspect:
        off = max(output.reference_ratio for output in outputs)
        reason += f"; the reference is suspect: its own ratio is {off:.3g}"
    return Verdict(status, worst, tuple(outputs), reason, suspect)


def _join_suspects(suspects: set[Suspect]) -> Suspect:
    accused = {name for name in suspects if name}
    if not accused:
        return ""
    if len(accused) == 1:
        return accused.pop()
    return "target and reference"
