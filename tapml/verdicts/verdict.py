"""Verdicts as data: what was decided about one test or one operator, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

from tapml.durable.strict_json import to_strict
from tapml.verdicts.metrics import Metrics
from tapml_targets.errors import (
    CompileError,
    DeviceLostError,
    KernelTimeoutError,
    LimitExceededError,
)

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


class Cause(StrEnum):
    """The reason for a verdict, gravest first. The values are stored: never change one."""

    LOST = "device lost"
    HANG = "kernel hangs"
    NO_KERNEL = "no kernel"
    UNBUILT = "kernels not built"
    LIMIT = "limit exceeded"
    REFUSED = "refused call"
    WRITE_OUTSIDE = "write outside"
    CHANGED_INPUT = "changed input"
    UNWRITTEN = "unwritten output"
    READ_OUTSIDE = "read outside"
    STALE_READ = "stale read"
    NONDETERMINISM = "nondeterminism"
    NAN = "NaN"
    INF = "Inf"
    WRONG_INTEGERS = "wrong integers"
    WRONG_VALUES = "wrong values"
    IMPRECISION = "imprecision"
    DISPUTED = "disputed expectation"
    """The numbers are within the limits, and the reference, the twin or the importer is suspect."""
    WHOLE_MODEL = "whole model"
    """The operator's own tests pass; the model differs from the reference with it."""
    TOO_SLOW = "too slow"
    """The numbers are right; the kernels take longer than the bound on slowness allows."""
    NO_DEVICE = "no device"
    NO_TWIN = "no float64 twin"
    NO_TEST = "no test"
    NONE = ""
    """A pass."""

    @property
    def is_loss(self) -> bool:
        """Whether the kernel took its device down, by a crash or a hang."""
        return self in (Cause.LOST, Cause.HANG)


_GRAVITY: Final = {cause: place for place, cause in enumerate(Cause)}


def cause_of(error: Exception) -> Cause:
    """The cause of a verdict if building or running a kernel raised `error`."""
    if isinstance(error, DeviceLostError):
        return Cause.HANG if isinstance(error, KernelTimeoutError) else Cause.LOST
    if isinstance(error, LimitExceededError):
        return Cause.LIMIT
    return Cause.UNBUILT if isinstance(error, CompileError) else Cause.REFUSED


@dataclass(frozen=True)
class Finding:
    """What a memory check or a comparison of runs found.

    Attributes
    ----------
    kind
        What the kernel did.
    text
        A sentence with numbers and names.
    """

    kind: Cause
    text: str


def severity(status: Status) -> int:
    """The place of a status from the mildest, ``pass``, to the gravest."""
    return _SEVERITY[status]


def worse(first: Status, second: Status) -> Status:
    """The graver of two statuses; ``not run`` is worse than a pass."""
    return max(first, second, key=severity)


def accusation(suspect: Suspect) -> str:
    """The suspect as a clause; empty if it is only the target, or none."""
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
        The limits that `ratio` was compared with.
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
        Elements accepted because they are off only by a subnormal number.
    reason
        Why, in numbers.
    metrics
        Further error metrics, if requested or the status is not a pass.
    independent_ratio
        Largest difference between the operator's float64 twin and torch's own graph in float64, in
        units of (sensitivity + ulp); None if not checked.
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
        Empty on a clean pass. ``importer``: the operator does not compute what the model does.
        ``twin``: the float64 twin does not compute what the operator does.
    cause
        The gravest of :attr:`causes`; ``Cause.NONE`` only for a pass.
    findings
        What memory checks saw: guards written, outputs left unwritten, runs that differ.
    """

    status: Status
    worst_ratio: float
    outputs: tuple[OutputNumbers, ...]
    reason: str
    suspect: Suspect = ""
    cause: Cause = Cause.NONE
    findings: tuple[Finding, ...] = ()

    def __post_init__(self) -> None:
        if (self.status == "pass") != (self.cause == Cause.NONE):
            raise ValueError(f"a verdict of {self.status!r} cannot have the cause {self.cause!r}")

    @property
    def causes(self) -> tuple[Cause, ...]:
        """All causes, gravest first; empty for a pass."""
        found = {self.cause, *(finding.kind for finding in self.findings)} - {Cause.NONE}
        return tuple(
            sorted(found.union(*map(numeric_causes, self.outputs)), key=_GRAVITY.__getitem__)
        )

    def with_finding(self, status: Status, finding: Finding) -> Verdict:
        """Add a finding, which makes the verdict at least as grave as `status`."""
        reason = finding.text if self.status == "pass" else f"{finding.text}; {self.reason}"
        by_reference = self.suspect in ("reference", "target and reference")
        return replace(
            self,
            status=worse(self.status, status),
            reason=reason,
            suspect="target and reference" if by_reference else "target",
            cause=min(self.cause, finding.kind, key=_GRAVITY.__getitem__),
            findings=(*self.findings, finding),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data for a strict JSON file: NaN and Inf become text."""
        plain: dict[str, Any] = to_strict(asdict(self))
        return plain


def failed(cause: Cause, reason: str) -> Verdict:
    """The verdict on a test whose kernel gave no outputs; the target is suspect."""
    return Verdict("fail", 0.0, (), reason, "target", cause)


def not_run(cause: Cause, reason: str) -> Verdict:
    """The verdict on a test that could not be run, which is never a pass."""
    return Verdict("not run", 0.0, (), reason, cause=cause)


def numeric_causes(output: OutputNumbers) -> Iterator[Cause]:
    """What is wrong with one output's numbers; empty if it passes."""
    if output.status == "pass":
        return
    if output.nan_mismatches:
        yield Cause.NAN
    if output.infinity_mismatches:
        yield Cause.INF
    # An element that is NaN or Inf on one side only also counts as above the limit.
    if output.over > output.nan_mismatches + output.infinity_mismatches:
        if "float" not in output.dtype:
            yield Cause.WRONG_INTEGERS
        else:
            yield Cause.IMPRECISION if output.status == "degraded" else Cause.WRONG_VALUES


def judged_cause(status: Status, outputs: Sequence[OutputNumbers]) -> Cause:
    """The cause of a verdict on numbers alone."""
    if status == "pass":
        return Cause.NONE
    found = (cause for output in outputs for cause in numeric_causes(output))
    return min(found, key=_GRAVITY.__getitem__, default=Cause.DISPUTED)
