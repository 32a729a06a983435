"""What replays give: one result per carved test, one verdict per operator."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from tapml.carving.lost import NO_TEST
from tapml.compare.oracle import CarvedCase
from tapml.compare.verdict import Status, Verdict, accusation, worse
from tapml.graph.plan import Operator

Array = NDArray[Any]


@dataclass(frozen=True)
class Timing:
    """Seconds of one replay; kernel time is twice the quicker run's, None where it is not told."""

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
        The test itself.
    verdict
        What was decided.
    timing
        Where the time went.
    actual
        The target's outputs of the first run; of passing results only where they were asked for.
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
    operator
        Its name.
    status
        The gravest status; ``not run`` where there was no test.
    worst_ratio
        Largest ratio over the tests.
    counts
        Tests per status.
    worst
        The gravest result, with the target's outputs; None without tests.
    reason
        Why, in numbers.
    results
        All results in order, without outputs.
    """

    operator: str
    status: Status
    worst_ratio: float
    counts: Mapping[Status, int]
    worst: ReplayResult | None
    reason: str
    results: tuple[ReplayResult, ...]

    @property
    def accusations(self) -> tuple[str, ...]:
        """Who is suspect in place of the target, or beside it, and in how many of the tests."""
        clauses = Counter(accusation(result.verdict.suspect) for result in self.results)
        del clauses[""]
        tests = len(self.results)
        return tuple(f"{clause} ({count} of {tests} tests)" for clause, count in clauses.items())

    def to_json(self) -> dict[str, Any]:
        """Plain data for journals and reports: the numbers of the worst test, counts, times."""
        return {
            "operator": self.operator,
            "status": self.status,
            "worst_ratio": _plain(self.worst_ratio),
            "counts": dict(self.counts),
            "reason": self.reason,
            "worst": None if self.worst is None else self.worst.to_json(),
            "tests": [
                {
                    "test": result.test,
                    "status": result.verdict.status,
                    "ratio": _plain(result.verdict.worst_ratio),
                    "suspect": result.verdict.suspect,
                    "device_seconds": result.timing.device,
                    "kernel_seconds": result.timing.kernel,
                    "judging_seconds": result.timing.judging,
                }
                for result in self.results
            ],
        }


def _plain(number: float) -> float | str:
    """A number that strict JSON holds."""
    return number if math.isfinite(number) else str(number)


def graver(first: ReplayResult | None, second: ReplayResult) -> ReplayResult:
    """The graver of two results; of equally grave ones the one with the larger ratio."""
    if first is None:
        return second
    if worse(first.verdict.status, second.verdict.status) != first.verdict.status:
        return second
    same = first.verdict.status == second.verdict.status
    return second if same and second.verdict.worst_ratio > first.verdict.worst_ratio else first


def unbuilt(operator: Operator, reason: str) -> OperatorVerdict:
    """The verdict on an operator of which no test could start: it fails."""
    counts: dict[Status, int] = {"pass": 0, "degraded": 0, "fail": 0, "not run": 0}
    return OperatorVerdict(operator.name, "fail", 0.0, counts, None, reason, ())


def summarise(
    operator: Operator,
    results: Sequence[ReplayResult],
    worst: ReplayResult | None,
    changed: Sequence[str],
) -> OperatorVerdict:
    """The verdict on an operator; `changed` are the weights its kernels wrote to."""
    counts: dict[Status, int] = {"pass": 0, "degraded": 0, "fail": 0, "not run": 0}
    for result in results:
        counts[result.verdict.status] += 1
    if worst is None:
        return OperatorVerdict(operator.name, "not run", 0.0, counts, None, NO_TEST, ())
    if changed:
        finding = f"the kernel wrote to {len(changed)} weights, which it may only read"
        worst = replace(worst, verdict=worst.verdict.with_finding("fail", finding))
    status, reason = worst.verdict.status, f"test {worst.test}: {worst.verdict.reason}"
    ratio = max(result.verdict.worst_ratio for result in results)
    return OperatorVerdict(operator.name, status, ratio, counts, worst, reason, tuple(results))
