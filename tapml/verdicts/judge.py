"""From numbers to a verdict (DESIGN.md, Verdicts; section III-D of the paper: F(I) = O).

A floating-point output is compared with its float64 value in units of (sensitivity + ulp).
Integers, booleans and indices must be exact, unless the float64 result itself changes when the
inputs are perturbed by one unit in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from tapml.verdicts.arbitration import decide, join_suspects
from tapml.verdicts.discrete import judge_discrete
from tapml.verdicts.expectation import Expectation, ExpectedOutput, float_errors
from tapml.verdicts.limits import RatioLimits
from tapml.verdicts.metrics import measure
from tapml.verdicts.policy import ChosenLimits, Policy
from tapml.verdicts.verdict import (
    OutputNumbers,
    Status,
    Suspect,
    Verdict,
    judged_cause,
    worse,
)
from tapml_targets.errors import InputError
from tapml_targets.float_formats import Float64s, as_float64, float_format

_UNDERFLOW_ROOM: Final = 2.0**16


class Named(Protocol):
    """A GraphPlan operator, or its name and hash from a repro folder."""

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
        decide whether a doubtful result is the target's fault alone. None if there are none.
    actual
        The target's outputs (raw bits), in the same order and with the same shapes.
    policy
        The limits.
    detailed
        Add :class:`~tapml.verdicts.metrics.Metrics` to passing outputs too.

    Raises
    ------
    InputError
        If the outputs' number, shapes or dtypes are not the expected ones.
    """
    if len(actual) != len(expectation.outputs):
        raise InputError(
            f"{operator.name}: expected {len(expectation.outputs)} outputs, got {len(actual)}"
        )
    judged = []
    checks = () if expectation.independent is None else expectation.independent.outputs
    for position, (want, got) in enumerate(zip(expectation.outputs, actual, strict=True)):
        if got.shape != want.values.shape:
            raise InputError(
                f"{operator.name}: output {want.name!r} has shape {got.shape}, "
                f"expected {want.values.shape}"
            )

        def judge_against(expected: ExpectedOutput, got: NDArray[Any] = got) -> OutputNumbers:
            if not expected.is_float:
                return judge_discrete(expected, got)
            limits = choose_limits(policy, operator.name, expected, expectation.terms).limits
            return _judge_float(expected, got, limits, policy, detailed)

        check = checks[position] if checks else None
        known = None if reference is None else reference[position]
        judged.append(decide(judge_against, want, check, known, got))
    return _summarise(judged)


def choose_limits(policy: Policy, operator: str, want: ExpectedOutput, terms: int) -> ChosenLimits:
    """The limits of one floating-point output, and their origin in the policy."""
    return policy.choose(
        operator,
        want.dtype,
        terms,
        operator_class=want.operator_class,
        arithmetic=want.arithmetic,
        output=want.name,
    )


def _judge_float(
    want: ExpectedOutput, raw: NDArray[Any], limits: RatioLimits, policy: Policy, detailed: bool
) -> OutputNumbers:
    got = as_float64(raw, want.dtype)
    ratios = float_errors(want, got)
    ratio = float(ratios.max(initial=0.0))
    flushed = 0
    if ratio > limits.passing and want.dtype in policy.flushes_subnormals:
        flushed = accept_flushed(ratios, want, got, limits.passing)
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


def accept_flushed(ratios: Float64s, want: ExpectedOutput, got: Float64s, limit: float) -> int:
    """Zero the ratios of errors that flushing subnormals explains; return how many.

    A device that flushes subnormals loses them in intermediates too: the result need not be zero.
    """
    with np.errstate(all="ignore"):
        flushed = (ratios > limit) & (np.abs(got - want.values) < flushed_below(want))
    ratios[flushed] = 0.0
    return int(flushed.sum())


def flushed_below(want: ExpectedOutput) -> float:
    """Bound of the errors that flushing subnormals explains.

    That is the smallest normal number for a copy. If anything is computed, an input or an
    intermediate result (exp(-90) within a sigmoid) may be flushed and multiplied afterwards, by up
    to 2**16.
    """
    room = 1.0 if want.operator_class == "exact" else _UNDERFLOW_ROOM
    return float_format(want.dtype).smallest_normal * room


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


def _summarise(judged: Sequence[tuple[OutputNumbers, Suspect]]) -> Verdict:
    if not judged:
        return Verdict("pass", 0.0, (), "the operator writes nothing")
    status: Status = "pass"
    outputs = tuple(output for output, _ in judged)
    for output in outputs:
        status = worse(status, output.status)
    gravest, _ = max(
        judged, key=lambda each: (each[0].status == status, each[1] != "", each[0].ratio)
    )
    return Verdict(
        status,
        max(output.ratio for output in outputs),
        outputs,
        gravest.reason,
        join_suspects({suspect for _, suspect in judged}),
        judged_cause(status, outputs),
    )
