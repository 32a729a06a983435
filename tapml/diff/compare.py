"""Regressions, improvements and other differences between two outcomes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, Protocol, TypeAlias

from tapml.diff.outcome import OperatorOutcome, Outcome
from tapml.durable.strict_json import to_strict
from tapml.verdicts.verdict import Status, severity

FORMAT: Final = "tapml-diff/1"
DEFAULT_FACTOR: Final = 4.0
# Changes below one unit of (sensitivity + ulp) are irrelevant.
_SMALLEST_RATIO: Final = 1.0

Change: TypeAlias = Literal["worse", "missing", "better", "changed", "new", "same"]
_ORDER: Final[Mapping[Change, int]] = {
    "worse": 0, "missing": 1, "changed": 2, "better": 3, "new": 4, "same": 5,
}  # fmt: skip


@dataclass(frozen=True)
class FactChange:
    """A fact that differs; None on a side that does not have it."""

    name: str
    first: str | None
    second: str | None


@dataclass(frozen=True)
class Difference:
    """The difference of an operator or a test.

    Attributes
    ----------
    name
        Name of the operator, or id of the test.
    change
        ``worse`` and ``missing`` are regressions; ``changed`` is a failure that was not run again.
    first, second
        Statuses; None on a side that does not have it.
    first_ratio, second_ratio
        Largest error in units of sensitivity + ulp; None likewise.
    ratio_changed
        Whether the ratios differ by more than the requested factor.
    reason
        The reason for the status in the second outcome, or else in the first.
    """

    name: str
    change: Change
    first: Status | None
    second: Status | None
    first_ratio: float | None
    second_ratio: float | None
    ratio_changed: bool
    reason: str = ""


@dataclass(frozen=True)
class OperatorDifference:
    """An operator, and its tests that differ; the seconds are times in kernels."""

    operator: Difference
    tests: tuple[Difference, ...]
    first_seconds: float | None
    second_seconds: float | None

    @property
    def worse(self) -> bool:
        """Whether the operator or one of its tests is a regression."""
        return any(each.change in ("worse", "missing") for each in (self.operator, *self.tests))

    @property
    def differs(self) -> bool:
        """Whether there is anything to show."""
        return self.operator.change != "same" or self.operator.ratio_changed or bool(self.tests)


@dataclass(frozen=True)
class Diff:
    """The comparison of two outcomes.

    Attributes
    ----------
    first, second
        The outcomes.
    factor
        Ratios that differ by more than this factor count as changed.
    facts
        Facts that differ.
    operators
        All operators, regressions first.
    model_worse
        Whether a session's complete model became worse.
    """

    first: Outcome
    second: Outcome
    factor: float
    facts: tuple[FactChange, ...]
    operators: tuple[OperatorDifference, ...]
    model_worse: bool

    @property
    def worse(self) -> bool:
        """Whether there is any regression."""
        return self.model_worse or any(each.worse for each in self.operators)

    def to_json(self) -> dict[str, Any]:
        """Plain data for a strict JSON file, format ``tapml-diff/1``; operators that differ."""
        plain: dict[str, Any] = to_strict(
            {
                "format": FORMAT,
                "first": {"path": self.first.path, "status": self.first.status},
                "second": {"path": self.second.path, "status": self.second.status},
                "worse": self.worse,
                "model_worse": self.model_worse,
                "factor": self.factor,
                "facts": [asdict(fact) for fact in self.facts],
                "operators": [asdict(each) for each in self.operators if each.differs],
                "seconds": [asdict(each) for each in self.times()],
            }
        )
        return plain

    def times(self) -> tuple[TimeChange, ...]:
        """Time in kernels of the operators that both sides measured."""
        return tuple(
            TimeChange(each.operator.name, each.first_seconds, each.second_seconds)
            for each in self.operators
            if each.first_seconds is not None and each.second_seconds is not None
        )


@dataclass(frozen=True)
class TimeChange:
    """Seconds in kernels of one operator; they do not affect the gate."""

    operator: str
    first: float
    second: float


def compare(first: Outcome, second: Outcome, *, factor: float = DEFAULT_FACTOR) -> Diff:
    """Compare `second` with `first`, which is known to be good.

    Parameters
    ----------
    first, second
        Outcomes from :func:`tapml.diff.outcome.read_outcome`.
    factor
        Ratios that differ by more than this factor (at least 1) are reported, but are not
        regressions: only the policy's limits decide.
    """
    names = dict.fromkeys((*first.operators, *second.operators))
    operators = [
        _operator(name, first.operators.get(name), second.operators.get(name), factor)
        for name in names
    ]
    operators.sort(key=lambda each: (not each.worse, _ORDER[each.operator.change]))
    return Diff(
        first,
        second,
        factor,
        tuple(_facts(first.facts, second.facts)),
        tuple(operators),
        _model_worse(first, second),
    )


def _facts(first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[FactChange]:
    for name in dict.fromkeys((*first, *second)):
        if first.get(name) != second.get(name):
            yield FactChange(name, first.get(name), second.get(name))


def _model_worse(first: Outcome, second: Outcome) -> bool:
    return first.whole_model == "pass" and second.whole_model not in (None, "pass")


def _operator(
    name: str, first: OperatorOutcome | None, second: OperatorOutcome | None, factor: float
) -> OperatorDifference:
    tests: tuple[Difference, ...] = ()
    # Sessions do not list tests, and operators that failed to build have none.
    if first is not None and second is not None and first.tests and second.tests:
        ids = dict.fromkeys((*first.tests, *second.tests))
        found = (
            _difference(test, first.tests.get(test), second.tests.get(test), factor) for test in ids
        )
        tests = tuple(each for each in found if each.change != "same" or each.ratio_changed)
        tests = tuple(sorted(tests, key=lambda each: _ORDER[each.change]))
    difference = _difference(name, first, second, factor)
    reason = next((side.reason for side in (second, first) if side is not None), "")
    if difference.change == "same":
        reason = ""
    return OperatorDifference(
        replace(difference, reason=reason),
        tests,
        None if first is None else first.kernel_seconds,
        None if second is None else second.kernel_seconds,
    )


def _difference(
    name: str, first: _Judged | None, second: _Judged | None, factor: float
) -> Difference:
    return Difference(
        name,
        _change(None if first is None else first.status, None if second is None else second.status),
        None if first is None else first.status,
        None if second is None else second.status,
        None if first is None else first.ratio,
        None if second is None else second.ratio,
        first is not None
        and second is not None
        and _ratio_changed(first.ratio, second.ratio, factor),
    )


class _Judged(Protocol):
    """The common properties of operators and tests."""

    @property
    def status(self) -> Status: ...

    @property
    def ratio(self) -> float: ...


def _change(first: Status | None, second: Status | None) -> Change:
    if first is None or second is None:
        if second is not None:
            return "worse" if second in ("degraded", "fail") else "new"
        # An operator that never ran is not missing.
        return "changed" if first == "not run" else "missing"
    if first == second:
        return "same"
    if second == "not run":
        return "worse" if first == "pass" else "changed"
    return "worse" if severity(second) > severity(first) else "better"


def _ratio_changed(first: float, second: float, factor: float) -> bool:
    if math.isnan(first) or math.isnan(second):
        return math.isnan(first) != math.isnan(second)
    low, high = sorted((max(first, _SMALLEST_RATIO), max(second, _SMALLEST_RATIO)))
    return high > low * factor
