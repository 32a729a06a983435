"""Compares the results of a platform's implementations on one operator, test by test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final

from numpy.typing import NDArray

from tapml.durable.strict_json import to_strict
from tapml.matrix.distance import (
    Distance,
    bit_distance,
    distance_between,
    group_agreeing,
    units_from,
)
from tapml.matrix.finding import Difference, Reading
from tapml.matrix.implementation import Implementation
from tapml.plan.graph_plan import Operator
from tapml.replaying.results import ReplayResult
from tapml.verdicts.device_effects import effects
from tapml.verdicts.expectation import Expectation, ExpectedOutput
from tapml.verdicts.judge import choose_limits
from tapml.verdicts.policy import Policy
from tapml.verdicts.verdict import OutputNumbers, Status, Verdict
from tapml_targets.float_formats import as_float64
from tapml_targets.self_test.facts import SelfTest

Array = NDArray[Any]
_RAN: Final[tuple[Status, ...]] = ("pass", "degraded", "fail")


@dataclass(frozen=True)
class ImplementationResult:
    """The result of one implementation on one test.

    `verdict` compares it with the reference; `actual` has the raw outputs, if the call ran.
    """

    who: Implementation
    verdict: Verdict
    actual: Sequence[Array] = ()

    @classmethod
    def of(cls, who: Implementation, result: ReplayResult) -> ImplementationResult:
        """The result of a replayed test."""
        return cls(who, result.verdict, result.actual)

    @property
    def label(self) -> str:
        """The user's name for the implementation."""
        return self.who.label


@dataclass
class Bits:
    """Bitwise comparison of the implementations over all tests of an operator.

    Attributes
    ----------
    labels
        The compared implementations.
    pairs
        Pairs that differ, with the largest distance in ulp.
    elements
        Largest number of differing elements in one output.
    """

    labels: list[str] = field(default_factory=list)
    pairs: dict[tuple[str, str], float] = field(default_factory=dict)
    elements: int = 0

    @property
    def max_ulps(self) -> float:
        """Largest distance between two floats in ulp."""
        return max(self.pairs.values(), default=0.0)

    @property
    def identical(self) -> list[list[str]]:
        """The labels in groups with equal bits, largest group first."""
        return group_agreeing(self.labels, dict.fromkeys(self.pairs, 1.0), 0.0)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "identical": self.identical,
            "max_ulps": to_strict(self.max_ulps),
            "elements": self.elements,
        }


class Comparison:
    """The implementations of one platform on one operator.

    Parameters
    ----------
    operator, kernels, platform
        What runs. If `operator` is only a name, there are verdicts to compare, but no outputs.
    policy
        Its limits apply between two implementations as between one and float64.
    self_test
        Returns a device's self-test by label, if any: it may explain a suspect's numbers.
    """

    def __init__(
        self,
        operator: Operator | str,
        kernels: Sequence[str],
        platform: str,
        policy: Policy,
        self_test: Callable[[str], SelfTest | None] = lambda label: None,
    ) -> None:
        self.bits = Bits()
        self._name = operator if isinstance(operator, str) else operator.name
        self._written = () if isinstance(operator, str) else operator.written
        self._policy = policy
        self._kernels, self._platform = tuple(kernels), platform
        self._self_test = self_test
        self._worst: Difference | None = None
        self._tests = 0

    def add(
        self,
        test: str,
        ran: Sequence[ImplementationResult],
        expect: Callable[[], Expectation | None],
        appeal: Callable[[], Expectation | None],
    ) -> None:
        """Compare the results of two or more implementations on one test.

        Parameters
        ----------
        test
            The test's id.
        ran
            The results.
        expect, appeal
            Compute the float64 outputs with few and with many perturbations; None without a twin.
        """
        ran = [each for each in ran if each.verdict.status in _RAN]
        with_outputs = [each for each in ran if each.actual]
        found: Difference | None = None
        if self._note_bits(with_outputs):
            found = self._values(test, with_outputs, ran, expect())
            if found is not None:
                # Three perturbations of the inputs are not enough to report a difference.
                found = self._values(test, with_outputs, ran, appeal())
        if found is None and len({each.verdict.status == "pass" for each in ran}) > 1:
            found = self._verdicts(test, ran)
        if found is not None:
            self._tests += 1
            if self._worst is None or _gravity(found) > _gravity(self._worst):
                self._worst = found

    @property
    def difference(self) -> Difference | None:
        """The most severe difference of all tests."""
        if self._worst is None:
            return None
        return Difference(**{**vars(self._worst), "tests": self._tests})

    def _note_bits(self, ran: Sequence[ImplementationResult]) -> bool:
        """Record bitwise differences; True if there are any."""
        self.bits.labels += [each.label for each in ran if each.label not in self.bits.labels]
        differ = False
        for one, other in combinations(ran, 2):
            for parameter, first, second in zip(
                self._written, one.actual, other.actual, strict=True
            ):
                bits = bit_distance(first, second, parameter.dtype)
                if not bits.elements:
                    continue
                differ = True
                pair = _pair(one.label, other.label)
                self.bits.pairs[pair] = max(self.bits.pairs.get(pair, 0.0), bits.max_ulps)
                self.bits.elements = max(self.bits.elements, bits.elements)
        return differ

    def _values(
        self,
        test: str,
        ran: Sequence[ImplementationResult],
        everyone: Sequence[ImplementationResult],
        want: Expectation | None,
    ) -> Difference | None:
        """The difference at the output with the largest distance beyond its limit."""
        gravest: tuple[Distance, int, float] | None = None
        for position, limit, pairs in self._outputs(ran, want):
            farthest = max(pairs.values(), key=lambda each: each.distance)
            beyond = farthest.distance > limit
            if beyond and (gravest is None or farthest.distance > gravest[0].distance):
                gravest = farthest, position, limit
        if gravest is None or want is None:
            return None
        at, position, limit = gravest
        output = want.outputs[position]
        distances = {
            _pair(one.label, other.label): distance_between(
                output, one.actual[position], other.actual[position], limit, self._policy
            ).distance
            for one, other in combinations(ran, 2)
        }
        groups = group_agreeing([each.label for each in ran], distances, limit)
        number = {label: place for place, group in enumerate(groups) for label in group}
        readings = tuple(
            _reading(each, output, position, at.index, number[each.label])
            if each.actual
            else Reading(
                each.label, each.who.made_of, None, None, each.verdict.status, each.verdict.reason,
                len(groups),
            )
            for each in everyone
        )  # fmt: skip
        suspects = _suspects(readings, limit)
        return Difference(
            operator=self._name,
            kernels=self._kernels,
            platform=self._platform,
            kind="values",
            test=test,
            tests=1,
            output=output.name,
            index=at.index,
            elements=at.beyond,
            expected=float(output.values[at.index]),
            distance=at.distance,
            limit=limit,
            unit=float(output.scale[at.index]) if output.is_float else 0.0,
            readings=readings,
            suspects=suspects,
            explanations=self._explain(everyone, suspects, position, output),
            compilers=_compilers(everyone, readings),
        )

    def _outputs(
        self, ran: Sequence[ImplementationResult], want: Expectation | None
    ) -> Iterator[tuple[int, float, Mapping[tuple[str, str], Distance]]]:
        """Position, limit and pairwise distances of each output."""
        for position, output in enumerate(() if want is None else want.outputs):
            limit = 0.0
            if output.is_float and want is not None:
                chosen = choose_limits(self._policy, self._name, output, want.terms)
                limit = chosen.limits.passing
            yield position, limit, {
                _pair(one.label, other.label): distance_between(
                    output, one.actual[position], other.actual[position], limit, self._policy
                )
                for one, other in combinations(ran, 2)
            }  # fmt: skip

    def _verdicts(self, test: str, ran: Sequence[ImplementationResult]) -> Difference:
        """The difference if some pass and others do not, although no values differ."""
        readings = tuple(
            Reading(
                each.label, each.who.made_of, None, None, each.verdict.status, each.verdict.reason,
                int(each.verdict.status != "pass"),
            )
            for each in ran
        )  # fmt: skip
        return Difference(
            operator=self._name,
            kernels=self._kernels,
            platform=self._platform,
            kind="verdicts",
            test=test,
            tests=1,
            output="",
            index=(),
            elements=0,
            expected=None,
            distance=0.0,
            limit=0.0,
            unit=0.0,
            readings=readings,
            suspects=tuple(each.label for each in ran if each.verdict.status != "pass"),
            compilers=_compilers(ran, readings),
        )

    def _explain(
        self,
        ran: Sequence[ImplementationResult],
        suspects: Sequence[str],
        position: int,
        output: ExpectedOutput,
    ) -> tuple[str, ...]:
        said: list[str] = []
        for each in ran:
            if each.label not in suspects or position >= len(each.verdict.outputs):
                continue
            known = self._self_test(each.label)
            if known is not None:
                numbers: OutputNumbers = each.verdict.outputs[position]
                said += [
                    f"{each.label}: {line}"
                    for line in effects(known, vars(numbers), output.operator_class)
                ]
        return tuple(said)


def _reading(
    ran: ImplementationResult,
    output: ExpectedOutput,
    position: int,
    index: tuple[int, ...],
    group: int,
) -> Reading:
    raw = ran.actual[position]
    values = as_float64(raw, output.dtype) if output.is_float else raw
    return Reading(
        label=ran.label,
        made_of=ran.who.made_of,
        value=float(values[index]),
        units=units_from(output, raw, index),
        status=ran.verdict.status,
        reason=ran.verdict.reason,
        group=group,
    )


def _suspects(readings: Sequence[Reading], limit: float) -> tuple[str, ...]:
    """Implementations beyond the limit from float64, else the farthest, unless all are."""
    measured = [each for each in readings if each.units is not None]
    measured.sort(key=lambda each: -(each.units or 0.0))
    beyond = tuple(each.label for each in measured if (each.units or 0.0) > limit)
    if beyond:
        return beyond
    most = max((each.units or 0.0 for each in measured), default=0.0)
    farthest = tuple(each.label for each in measured if each.units == most)
    return farthest if len(farthest) < len(measured) else ()


def _compilers(
    ran: Sequence[ImplementationResult], readings: Sequence[Reading]
) -> tuple[tuple[str, ...], ...]:
    sides: dict[int, list[str]] = {}
    for each, reading in zip(ran, readings, strict=True):
        sides.setdefault(reading.group, []).append(each.who.compiler)
    return tuple(tuple(sides[group]) for group in sorted(sides))


def _pair(one: str, other: str) -> tuple[str, str]:
    return min(one, other), max(one, other)


def _gravity(difference: Difference) -> tuple[bool, float]:
    return difference.kind == "values", difference.distance
