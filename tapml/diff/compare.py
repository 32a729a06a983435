"""What became worse, what better, and what else differs between two outcomes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, Protocol, TypeAlias

from tapml.compare.verdict import Status
from tapml.diff.outcome import OperatorOutcome, Outcome

FORMAT: Final = "tapml-diff/1"
DEFAULT_FACTOR: Final = 4.0
# Below one unit of (sensitivity + ulp) a change says nothing.
_SMALLEST_RATIO: Final = 1.0
_SEVERITY: Final[Mapping[Status, int]] = {"pass": 0, "not run": 1, "degraded": 2, "fail": 3}

Change: TypeAlias = Literal["worse", "missing", "better", "changed", "new", "same"]
_ORDER: Final[Mapping[Change, int]] = {
    "worse": 0, "missing": 1, "changed": 2, "better": 3, "new": 4, "same": 5,
}  # fmt: skip


@dataclass(frozen=True)
class FactChange:
    """A circumstance that differs; None where one side does not have it."""

    name: str
    first: str | None
    second: str | None


@dataclass(frozen=True)
class Difference:
    """What became of an operator or a test.

    Attributes
    ----------
    name
        Of the operator, or the test's id.
    change
        ``worse`` or ``missing`` close the gate; ``changed`` is a failure that was not tried again.
    first, second
        Statuses; None on the side that does not have it.
    first_ratio, second_ratio
        Largest error in units of sensitivity + ulp; None likewise.
    ratio_changed
        Whether the ratios differ by more than the factor asked for.
    reason
        Why it has the status it has in the second outcome, or had in the first.
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
    """An operator, and those of its tests that differ.

    `first_seconds` and `second_seconds` are time in kernels, for information.
    """

    operator: Difference
    tests: tuple[Difference, ...]
    first_seconds: float | None
    second_seconds: float | None

    @property
    def worse(self) -> bool:
        """Whether the operator or one of its tests closes the gate."""
        return any(each.change in ("worse", "missing") for each in (self.operator, *self.tests))

    @property
    def differs(self) -> bool:
        """Whether there is anything to show."""
        return self.operator.change != "same" or self.operator.ratio_changed or bool(self.tests)


@dataclass(frozen=True)
class Diff:
    """Two outcomes held against each other.

    Attributes
    ----------
    first, second
        The outcomes.
    factor
        From which factor on ratios count as changed.
    facts
        Circumstances that differ.
    operators
        All operators, what became worse first.
    model_worse
        Whether the whole model, which sessions run, became worse.
    """

    first: Outcome
    second: Outcome
    factor: float
    facts: tuple[FactChange, ...]
    operators: tuple[OperatorDifference, ...]
    model_worse: bool

    @property
    def worse(self) -> bool:
        """Whether anything became worse: the gate is closed."""
        return self.model_worse or any(each.worse for each in self.operators)

    def to_json(self) -> dict[str, Any]:
        """Plain data for a strict JSON file, format ``tapml-diff/1``; operators that differ."""
        plain: dict[str, Any] = _plain(
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
    """Seconds in kernels of one operator; information, never a verdict."""

    operator: str
    first: float
    second: float


def compare(first: Outcome, second: Outcome, *, factor: float = DEFAULT_FACTOR) -> Diff:
    """Hold `second` against `first`, the one that is known to be good.

    Parameters
    ----------
    first, second
        From :func:`tapml.diff.outcome.read_outcome`.
    factor
        Ratios that differ by more are shown; 1 or more. They close no gate: the policy's limits
        are what separates right from wrong.
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
    """Whether the whole model passed on the first side and did not on the second."""
    name = "whole model"
    return first.facts.get(name) == "pass" and second.facts.get(name) not in (None, "pass")


def _operator(
    name: str, first: OperatorOutcome | None, second: OperatorOutcome | None, factor: float
) -> OperatorDifference:
    tests: tuple[Difference, ...] = ()
    # A session does not say it test by test, and what did not build has no tests.
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
    """What operators and tests have in common."""

    @property
    def status(self) -> Status: ...

    @property
    def ratio(self) -> float: ...


def _change(first: Status | None, second: Status | None) -> Change:
    if first is None or second is None:
        if second is not None:
            return "worse" if second in ("degraded", "fail") else "new"
        # What was never run is not missed.
        return "changed" if first == "not run" else "missing"
    if first == second:
        return "same"
    if second == "not run":
        return "worse" if first == "pass" else "changed"
    return "worse" if _SEVERITY[second] > _SEVERITY[first] else "better"


def _ratio_changed(first: float, second: float, factor: float) -> bool:
    if math.isnan(first) or math.isnan(second):
        return math.isnan(first) != math.isnan(second)
    low, high = sorted((max(first, _SMALLEST_RATIO), max(second, _SMALLEST_RATIO)))
    return high > low * factor


def _plain(value: Any) -> Any:
    """`value` with non-finite floats as text and tuples as lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
