"""The arithmetic of one verdict, step by step, for a person with a calculator (``--explain``)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.oracles.sensitivity import ElementTrace
from tapml.runs.wording import counted
from tapml.verdicts.device_effects import denormals_expected, effects
from tapml.verdicts.expectation import Expectation, ExpectedOutput
from tapml.verdicts.judge import Named, choose_limits, flushed_below
from tapml.verdicts.policy import ChosenLimits, Policy
from tapml.verdicts.verdict import OutputNumbers, Verdict
from tapml_targets.errors import InputError
from tapml_targets.float_formats import as_float64, ulp
from tapml_targets.self_test.facts import SelfTest

_SHOWN_PERTURBATIONS: Final = 16
_LABEL: Final = 26


def explain(
    verdict: Verdict,
    expectation: Expectation,
    policy: Policy,
    operator: Named,
    *,
    reference: Sequence[NDArray[Any]] | None = None,
    traces: Mapping[str, ElementTrace] | None = None,
    self_test: SelfTest | None = None,
) -> str:
    """Show every number behind `verdict`.

    Parameters
    ----------
    verdict
        Verdict of one test, with its outputs' numbers.
    expectation
        The oracle's ``expect`` for a pass, else its ``appeal``.
    policy
        The limits used.
    operator
        The operator under test.
    reference
        The reference's raw outputs.
    traces
        By output name, the trace of the worst element's sensitivity
        (:meth:`tapml.oracles.oracle.Oracle.trace`); without it only the sum is shown.
    self_test
        Facts of the device, which may explain numbers and change no limit.

    Returns
    -------
    str
        Lines of text. Numbers have all digits, so that each can be recomputed.

    Raises
    ------
    InputError
        If the outputs of `verdict` and `expectation` differ in number.
    """
    if verdict.outputs and len(verdict.outputs) != len(expectation.outputs):
        raise InputError(
            f"{operator.name}: the verdict has {len(verdict.outputs)} outputs, the expectation "
            f"{len(expectation.outputs)}; take both from one test"
        )
    lines = [f"{operator.name}: {verdict.status}", f"  {verdict.reason}"]
    for position, numbers in enumerate(verdict.outputs):
        want = expectation.outputs[position]
        lines.append("")
        lines.append(
            f"output {want.name}: {want.kind}, {want.dtype}{list(want.values.shape)}, "
            f"{want.operator_class}, {numbers.status}"
        )
        raw = None if reference is None else reference[position]
        trace = (traces or {}).get(want.name)
        body = (
            _float(numbers, expectation, position, policy, operator.name, raw, trace)
            if want.is_float
            else _discrete(numbers, want)
        )
        lines += [f"  {line}" for line in body]
    lines += ["", *_checks(verdict)]
    if self_test is not None:
        lines += ["", *_device(verdict, expectation, self_test)]
    lines += ["", *_conclusion(verdict)]
    return "\n".join(lines) + "\n"


def _float(
    numbers: OutputNumbers,
    expectation: Expectation,
    position: int,
    policy: Policy,
    operator: str,
    reference: NDArray[Any] | None,
    trace: ElementTrace | None,
) -> Iterator[str]:
    want, index = expectation.outputs[position], numbers.index
    if not numbers.elements:
        yield "it has no elements"
        return
    yield f"worst of {numbers.elements} elements: {want.name}[{', '.join(map(str, index))}]"
    yield _line("on the target", numbers.actual, _bits(numbers.actual, want.dtype))
    if reference is not None:
        value = float(as_float64(reference[index], want.dtype))
        yield _line("on the reference", value, _bits(value, want.dtype))
    yield _line("float64 twin", numbers.expected)
    yield from _independent(expectation, position, index)
    if math.isinf(numbers.ratio):
        yield (
            f"ratio infinite: {numbers.nan_mismatches} elements are NaN and "
            f"{numbers.infinity_mismatches} Inf on one side only, or integers would not do"
        )
    else:
        yield from _ratio(numbers, want, trace, expectation.repeats)
    chosen = choose_limits(policy, operator, want, expectation.terms)
    yield from _limits(chosen, policy)
    yield from _compared(numbers, want, chosen)


def _independent(expectation: Expectation, position: int, index: tuple[int, ...]) -> Iterator[str]:
    check = expectation.independent
    if check is None:
        yield f"{'float64 by torch':{_LABEL}}not checked: another test of this call site was"
    elif not check.available:
        yield f"{'float64 by torch':{_LABEL}}not available: {check.reason}"
    else:
        output = check.outputs[position]
        if output.values is not None:
            yield _line("float64 by torch", float(output.values[index]))
        yield (
            f"{'':{_LABEL}}torch is within {output.twin_ratio!r} (sensitivity + ulp) of the twin "
            f"everywhere; {output.bound!r} is where two right ones end"
        )


def _ratio(
    numbers: OutputNumbers, want: ExpectedOutput, trace: ElementTrace | None, repeats: int
) -> Iterator[str]:
    index = numbers.index
    error = abs(numbers.actual - numbers.expected)
    yield _line("error", error, "|target - twin|")
    sensitivity = float(want.sensitivity[index])
    if repeats == 0:
        yield _line("sensitivity", sensitivity, "no input was perturbed: exact, or a probe")
    elif trace is None:
        yield _line("sensitivity", sensitivity, f"of {repeats} perturbations of the inputs")
    else:
        yield from _perturbations(trace)
        yield _line("sensitivity", sensitivity, "the same rounded up to 8 binary digits")
    unit = float(ulp(np.asarray(want.values[index]), want.dtype))
    yield _line(f"ulp of {want.dtype}", unit, "at the twin's value")
    yield _line("sensitivity + ulp", sensitivity + unit)
    yield _line("ratio", numbers.ratio, "error / (sensitivity + ulp)")


def _perturbations(trace: ElementTrace) -> Iterator[str]:
    count = len(trace.perturbed)
    yield f"the twin's values here for {count} perturbations of the inputs by up to an ulp:"
    for number, value in enumerate(trace.perturbed[:_SHOWN_PERTURBATIONS], 1):
        yield _line(f"  perturbation {number}", value, f"{value - trace.exact:+.6g}")
    if count > _SHOWN_PERTURBATIONS:
        yield f"  and {count - _SHOWN_PERTURBATIONS} more"
    yield _line("root mean square", trace.root_mean_square, "of its changes")
    yield _line("least for its row", trace.row_level, "an element may not change by chance")
    if trace.share != 1.0:
        yield _line(
            "share", trace.share, "computed in a wider dtype: so many of these for one unit"
        )


def _limits(chosen: ChosenLimits, policy: Policy) -> Iterator[str]:
    base = chosen.base
    if chosen.override is not None:
        source = f"override of {chosen.override.describe()}: {chosen.override.reason}"
    elif chosen.default:
        source = "calibrated default"
    else:
        source = "the policy" + (f": {policy.reason}" if policy.reason else "")
    yield (
        f"limits of {chosen.dtype} {chosen.operator_class} ({source}): pass up to "
        f"{base.passing!r}, degraded up to {base.degraded!r}"
    )
    if chosen.growth > 1:
        yield (
            f"sums of {chosen.terms} terms: beyond {base.terms_without_growth} both grow by "
            f"sqrt({chosen.terms} / {base.terms_without_growth}) = {chosen.growth!r}"
        )
    yield _line("pass up to", chosen.limits.passing)
    yield _line("degraded up to", chosen.limits.degraded)


def _compared(numbers: OutputNumbers, want: ExpectedOutput, chosen: ChosenLimits) -> Iterator[str]:
    limits = chosen.limits
    if numbers.ratio <= limits.passing:
        yield f"{numbers.ratio!r} <= {limits.passing!r}: pass"
    elif numbers.ratio <= limits.degraded:
        yield f"{limits.passing!r} < {numbers.ratio!r} <= {limits.degraded!r}: degraded"
    else:
        yield f"{numbers.ratio!r} > {limits.degraded!r}: fail"
    if numbers.over:
        yield f"{numbers.over} of {numbers.elements} elements are above the first limit"
    if numbers.flushed:
        yield (
            f"{numbers.flushed} errors are below {flushed_below(want)!r}, as flushing subnormals "
            "gives; they were left out"
        )
    yield (
        f"the reference's own worst ratio is {numbers.reference_ratio!r}: "
        f"{'it is off itself' if numbers.reference_ratio > limits.passing else 'it is right'}"
    )


def _discrete(numbers: OutputNumbers, want: ExpectedOutput) -> Iterator[str]:
    if numbers.over:
        yield f"{numbers.over} of {numbers.elements} elements are wrong"
        yield _line("float64 twin", numbers.expected, f"first at {list(numbers.index)}")
        yield _line("on the target", numbers.actual)
    if want.source is not None:
        yield "an index is right where the value it points at is the best one's"
    elif want.kind in ("code", "predicate"):
        yield (
            f"a {want.kind} may differ if float64's changed with perturbed inputs: at "
            f"{int((want.sensitivity > 0).sum())} of {numbers.elements} elements it did"
        )
    else:
        yield "integers must be equal"
    yield numbers.reason


def _checks(verdict: Verdict) -> Iterator[str]:
    yield "memory and repeats:"
    if not verdict.findings:
        yield "  guard bands and inputs untouched, all outputs written, both runs equal"
    yield from (f"  {finding.text}" for finding in verdict.findings)


def _device(verdict: Verdict, expectation: Expectation, self_test: SelfTest) -> Iterator[str]:
    yield "the device's self-test, which changes no limit:"
    has_lines = False
    for numbers, want in zip(verdict.outputs, expectation.outputs, strict=False):
        found = denormals_expected(self_test, want)
        found += effects(self_test, asdict(numbers), want.operator_class)
        for line in found:
            has_lines = True
            yield f"  {want.name}: {line}"
    if not has_lines:
        facts = ", ".join(self_test.traits) or "as expected"
        yield f"  explains none of these numbers: {facts}"
    yield from (f"  not measured: {problem}" for problem in self_test.problems)


def _conclusion(verdict: Verdict) -> Iterator[str]:
    statuses = [output.status for output in verdict.outputs]
    yield (
        f"{verdict.status}: the gravest of its outputs ({', '.join(statuses) or 'none'}) and of "
        f"{counted(len(verdict.findings), 'finding')}"
    )
    if verdict.suspect:
        yield f"suspect: {verdict.suspect}"


def _line(label: str, value: float, note: str = "") -> str:
    return f"{label:{_LABEL}}{value!r}{f'   {note}' if note else ''}"


def _bits(value: float, dtype: str) -> str:
    """The bits of a value in a dtype; empty for 8-bit formats."""
    if not math.isfinite(value) or dtype.startswith("float8"):
        return ""
    if dtype == "bfloat16":
        return f"0x{int(np.float32(value).view(np.uint32)) >> 16:04x}"
    number = np.dtype(dtype).type(value)
    return f"0x{int(number.view(f'u{number.itemsize}')):0{2 * number.itemsize}x}"
