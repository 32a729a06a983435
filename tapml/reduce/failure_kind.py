"""Compares failures: a reduced test must show the failure of the original."""

from __future__ import annotations

from tapml.verdicts.verdict import Cause, Verdict, worse


def same_failure(first: Verdict, second: Verdict) -> bool:
    """Whether `second` fails at least as severely as `first` and has its most severe cause."""
    if not failure_causes(first) or worse(first.status, second.status) != second.status:
        return False
    causes = failure_causes(second)
    # A result that was imprecise and is now wrong shows the same fault.
    return first.cause in causes or (
        first.cause == Cause.IMPRECISION and Cause.WRONG_VALUES in causes
    )


def failure_causes(verdict: Verdict) -> tuple[Cause, ...]:
    """The causes of a failure, most severe first; empty for a pass and if not run."""
    return () if verdict.status == "not run" else verdict.causes
