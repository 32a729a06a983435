"""Which side a wrong output points to: the target, the reference, the importer or the float64 twin.

Reference, target and twin are made from the imported function, torch's own graph is not. Which of
them agree shows where the fault is; docs/verdicts.md has the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapml.verdicts.expectation import ExpectedOutput, IndependentOutput, worst_ratio
from tapml.verdicts.verdict import OutputNumbers, Suspect
from tapml_targets.float_formats import as_float64

Judging = Callable[[ExpectedOutput], OutputNumbers]
"""Judges the target's output against an expectation."""


def decide(
    judge_against: Judging,
    want: ExpectedOutput,
    independent: IndependentOutput | None,
    reference: NDArray[Any] | None,
    got: NDArray[Any],
) -> tuple[OutputNumbers, Suspect]:
    """Judge one output and name the suspect.

    Parameters
    ----------
    judge_against
        Gives the numbers of the target's output.
    want
        Result of the float64 twin.
    independent
        Result of torch's own graph; None if unknown.
    reference, got
        Raw outputs of the reference (None if there are none) and of the target.
    """
    output = judge_against(want)
    if independent is None:
        return _share_blame(output, want, reference, got)
    if independent.agrees:
        output, suspect = _share_blame(output, want, reference, got)
        if suspect == "reference" and output.status != "pass":
            output = _noted(output, "torch's own graph agrees with the float64 twin")
    else:
        output, suspect = _between_oracles(judge_against, output, want, independent, reference, got)
    return replace(output, independent_ratio=independent.twin_ratio), suspect


def _between_oracles(
    judge_against: Judging,
    output: OutputNumbers,
    want: ExpectedOutput,
    independent: IndependentOutput,
    reference: NDArray[Any] | None,
    got: NDArray[Any],
) -> tuple[OutputNumbers, Suspect]:
    """Twin and torch disagree: the reference decides which of them is wrong."""
    near_twin = want.reference_ratio <= output.passing
    near_torch = independent.reference_ratio <= output.passing
    apart = (
        f"torch's own graph in float64 differs from the float64 twin by a ratio of "
        f"{independent.twin_ratio:.3g} where {independent.bound:.3g} is expected"
    )
    if near_twin and want.reference_ratio <= independent.reference_ratio:
        note = (
            f"the importer is suspect: {apart}, and the reference agrees with the twin "
            f"({want.reference_ratio:.3g}; with torch {independent.reference_ratio:.3g}), so the "
            "imported operator does not compute what the model does"
        )
        if output.status == "pass":
            return _noted(replace(output, status="degraded"), note), "importer"
        return _noted(output, note), "target"
    if independent.values is None:
        return _share_blame(output, want, reference, got)
    as_torch = replace(want, values=independent.values, reference_ratio=independent.reference_ratio)
    against_torch = judge_against(as_torch)
    if near_torch:
        note = (
            f"the float64 twin is suspect: {apart}, and the reference agrees with torch "
            f"({independent.reference_ratio:.3g}; with the twin {want.reference_ratio:.3g}); "
            "judged against torch"
        )
        against_torch = _noted(against_torch, note)
        return against_torch, "twin" if against_torch.status == "pass" else "target"
    off = (
        f"{apart}; the reference agrees with neither (with the twin {want.reference_ratio:.3g}, "
        f"with torch {independent.reference_ratio:.3g})"
    )
    if output.status == "pass":
        note = f"the importer is suspect: {off}, the target agrees with the twin"
        return _noted(replace(output, status="degraded"), note), "importer"
    if against_torch.status == "pass":
        note = f"the float64 twin is suspect: {off}, the target agrees with torch"
        return _noted(replace(against_torch, status="degraded"), note), "twin"
    output, suspect = _share_blame(output, want, reference, got)
    return _noted(output, off), suspect


def _noted(output: OutputNumbers, note: str) -> OutputNumbers:
    return replace(output, reason=f"{output.reason}; {note}")


def _share_blame(
    output: OutputNumbers,
    want: ExpectedOutput,
    reference: NDArray[Any] | None,
    got: NDArray[Any],
) -> tuple[OutputNumbers, Suspect]:
    """Name the suspect. If the reference is equally wrong, the target is not blamed alone."""
    reference_is_off = want.reference_ratio > output.passing
    if output.status == "pass":
        if not reference_is_off:
            return output, ""
        note = f"the reference is suspect: its own ratio is {want.reference_ratio:.3g}"
        return _noted(output, note), "reference"
    if not reference_is_off or reference is None:
        return output, "target"
    agree = _agree(want, reference, got, output)
    output = _noted(
        output,
        f"the reference is off by a ratio of {want.reference_ratio:.3g} itself"
        f"{' and agrees with the target' if agree else ''}",
    )
    if agree:
        return replace(output, status="degraded"), "reference"
    return output, "target and reference"


def _agree(
    want: ExpectedOutput, reference: NDArray[Any], got: NDArray[Any], output: OutputNumbers
) -> bool:
    """Whether target and reference make the same error; then float64 or the importer is suspect.

    That means: close to each other, or off by the same amount. An operator that loses digits in any
    float32 arithmetic loses different ones on every platform.
    """
    if not want.is_float:
        return bool(np.array_equal(reference, got))
    against_reference = replace(want, values=as_float64(reference, want.dtype))
    mutual = worst_ratio(against_reference, got)
    # A misplaced NaN on the reference excuses a NaN there, and no other error.
    finite = math.isfinite(output.ratio) and math.isfinite(want.reference_ratio)
    alike = finite and output.ratio <= 4.0 * want.reference_ratio
    return mutual <= output.passing or alike


def join_suspects(suspects: set[Suspect]) -> Suspect:
    """Combine the suspects of several outputs; the one blamed for a failure comes first."""
    if "target and reference" in suspects or {"target", "reference"} <= suspects:
        return "target and reference"
    order: tuple[Suspect, ...] = ("target", "importer", "twin", "reference")
    return next((name for name in order if name in suspects), "")
