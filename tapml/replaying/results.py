"""Results of replays: one per carved test, and one verdict per operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from tapml.durable.strict_json import to_strict
from tapml.oracles.carved_case import CarvedCase
from tapml.plan.graph_plan import Operator
from tapml.replaying.failure_text import NO_TEST
from tapml.verdicts.verdict import Cause, Finding, Status, Verdict, accusation, worse

Array = NDArray[Any]


@dataclass(frozen=True)
class Timing:
    """Seconds of one replay; kernel time is twice the faster run's, None if not measured."""

    reading: float
    device: float
    kernel: float | None
    judging: float
    nbytes: int


@dataclass(frozen=True)
class ReplayResult:
    """One carved test on a device.

    Attributes
    ----------
    test, operator
        Their names.
    case
        The test.
    timing
        Time by phase.
    actual
        The target's outputs of the first run; for a passing result only on request.
    """

    test: str
    operator: str
    verdict: Verdict
    timing: Timing
    case: CarvedCase = field(repr=False, compare=False)
    actual: tuple[Array, ...] = field(default=(), repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Plain data, without the test's tensors."""
        return {
            "test": self.test,
            "operator": self.operator,
            "verdict": self.verdict.to_json(),
            "timing": asdict(self.timing),
        }


@dataclass(frozen=True)
class OperatorVerdict:
    """All carved tests of one operator on a device.

    Attributes
    ----------
    status
        The most severe status; ``not run`` without tests.
    worst_ratio
        Largest ratio over the tests.
    counts
        Tests per status.
    worst
        The most severe result, with the target's outputs; None without tests.
    reason
        The reason, with numbers.
    cause
        The cause of the most severe test's status, or why none ran.
    results
        All results in order, without outputs.
    """

    operator: str
    status: Status
    worst_ratio: float
    counts: Mapping[Status, int]
    worst: ReplayResult | None
    reason: str
    cause: Cause
    results: tuple[ReplayResult, ...]

    @property
    def accusations(self) -> tuple[str, ...]:
        """Suspects other than the target, with the number of tests that point to each."""
        clauses = Counter(accusation(result.verdict.suspect) for result in self.results)
        del clauses[""]
        tests = len(self.results)
        return tuple(f"{clause} ({count} of {tests} tests)" for clause, count in clauses.items())

    def to_json(self) -> dict[str, Any]:
        """Plain data for journals and reports: the numbers of the worst test, counts, times."""
        return {
            "operator": self.operator,
            "status": self.status,
            "worst_ratio": to_strict(self.worst_ratio),
            "counts": dict(self.counts),
            "reason": self.reason,
            "cause": self.cause,
            "worst": None if self.worst is None else self.worst.to_json(),
            "tests": [
                {
                    "test": result.test,
                    "status": result.verdict.status,
                    "ratio": to_strict(result.verdict.worst_ratio),
                    "suspect": result.verdict.suspect,
                    "cause": result.verdict.cause,
                    "device_seconds": result.timing.device,
                    "kernel_seconds": result.timing.kernel,
                    "judging_seconds": result.timing.judging,
                }
                for result in self.results
            ],
        }


def more_severe(first: ReplayResult | None, second: ReplayResult) -> ReplayResult:
    """The more severe result, by status and then by ratio."""
    if first is None:
        return second
    if worse(first.verdict.status, second.verdict.status) != first.verdict.status:
        return second
    same = first.verdict.status == second.verdict.status
    return second if same and second.verdict.worst_ratio > first.verdict.worst_ratio else first


def failed_build(operator: Operator, cause: Cause, reason: str) -> OperatorVerdict:
    """The verdict on an operator of which no test could start: fail."""
    counts: dict[Status, int] = {"pass": 0, "degraded": 0, "fail": 0, "not run": 0}
    return OperatorVerdict(operator.name, "fail", 0.0, counts, None, reason, cause, ())


def summarise(
    operator: Operator,
    results: Sequence[ReplayResult],
    worst: ReplayResult | None,
    changed: Sequence[str],
) -> OperatorVerdict:
    """The verdict on an operator; `changed` are the weights that its kernels modified."""
    counts: dict[Status, int] = {"pass": 0, "degraded": 0, "fail": 0, "not run": 0}
    for result in results:
        counts[result.verdict.status] += 1
    if worst is None:
        return OperatorVerdict(
            operator.name, "not run", 0.0, counts, None, NO_TEST, Cause.NO_TEST, ()
        )
    if changed:
        what = f"the kernel wrote to {len(changed)} weights, which it may only read"
        finding = Finding(Cause.CHANGED_INPUT, what)
        worst = replace(worst, verdict=worst.verdict.with_finding("fail", finding))
    verdict, reason = worst.verdict, f"test {worst.test}: {worst.verdict.reason}"
    ratio = max(result.verdict.worst_ratio for result in results)
    return OperatorVerdict(
        operator.name, verdict.status, ratio, counts, worst, reason, verdict.cause, tuple(results)
    )
