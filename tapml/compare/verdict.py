"""Verdicts as data: what was decided about one test or one operator, and the numbers behind it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from tapml.compare.metrics import Metrics

Status: TypeAlias = Literal["pass", "degraded", "fail", "not run"]
Suspect: TypeAlias = Literal["", "target", "reference", "importer", "twin", "target and reference"]

_ACCUSATIONS: Final[dict[Suspect, str]] = {
    "": "",
    "target": "",
    "reference": "the reference is suspect, not the target",
    "importer": "the importer is suspect, not the target",
    "twin": "the float64 twin is suspect, not the target",
    "target and reference": "the reference is suspect beside the target",
}
_SEVERITY: Final[dict[Status, int]] = {"pass": 0, "not run": 1, "degraded": 2, "fail": 3}


def worse(first: Status, second: Status) -> Status:
    """The graver of two statuses; what was not run is worse than a pass and never one."""
    return max(first, second, key=_SEVERITY.__getitem__)


def accusation(suspect: Suspect) -> str:
    """Who is suspect, as a clause; empty where it is the target alone, or nobody."""
    return _ACCUSATIONS[suspect]


@dataclass(frozen=True)
class OutputNumbers:
    """The arithmetic of one output's verdict.

    Attributes
    ----------
    name, kind, dtype, elements
        Which output, what its values mean, how many there are.
    status
        This output's part of the verdict.
    ratio
        Largest error / (sensitivity + ulp); Inf for a NaN, an Inf or an integer out of place.
    rms_ratio
        Root mean square of the same over all finite elements.
    reference_ratio
        `ratio` of the reference's own output.
    passing, degraded
        The limits that `ratio` was held against.
    over
        Elements whose ratio is above `passing`.
    index
        Position of the worst element.
    expected, actual
        Values there: float64's and the target's.
    scale
        sensitivity + ulp there.
    nan_mismatches, infinity_mismatches
        Elements that are NaN (Inf) on one side only.
    flushed
        Elements accepted because they are off by a subnormal number only.
    reason
        Why, in numbers.
    metrics
        Further error numbers, where they were asked for or the status is not a pass.
    independent_ratio
        Largest difference between the operator's float64 twin and torch's own graph in float64, in
        units of (sensitivity + ulp); None where it was not looked at.
    """

    name: str
    kind: str
    dtype: str
    elements: int
    status: Status
    ratio: float
    rms_ratio: float
    reference_ratio: float
    passing: float
    degraded: float
    over: int
    index: tuple[int, ...]
    expected: float
    actual: float
    scale: float
    nan_mismatches: int
    infinity_mismatches: int
    flushed: int
    reason: str
    metrics: Metrics | None = None
    independent_ratio: float | None = None


@dataclass(frozen=True)
class Verdict:
    """What was decided about one test.

    Attributes
    ----------
    status
        ``pass``, ``degraded``, ``fail`` or ``not run``.
    worst_ratio
        Largest ratio over the outputs.
    outputs
        Numbers per output.
    reason
        One line that says why, in numbers.
    suspect
        Whom the numbers accuse; empty on a clean pass. ``importer``: the operator does not compute
        what the model does. ``twin``: the float64 twin is not what the operator computes.
    findings
        What memory checks saw: guards written, outputs left unwritten, runs that differ.
    """

    status: Status
    worst_ratio: float
    outputs: tuple[OutputNumbers, ...]
    reason: str
    suspect: Suspect = ""
    findings: tuple[str, ...] = ()

    def with_finding(self, status: Status, finding: str) -> Verdict:
        """Make the verdict at least as grave as `status` for what was seen beside the numbers."""
        reason = finding if self.status == "pass" else f"{finding}; {self.reason}"
        return replace(
            self,
            status=worse(self.status, status),
            reason=reason,
            suspect="target and reference" if self.suspect.endswith("reference") else "target",
            findings=(*self.findings, finding),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data for a strict JSON file: NaN and Inf become text."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def not_run(reason: str) -> Verdict:
    """The verdict on a test that could not be run, which is never a pass."""
    return Verdict("not run", 0.0, (), reason)


def _plain(value: Any) -> Any:
    """`value` with non-finite floats as text and tuples as lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
