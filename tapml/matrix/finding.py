"""A difference between implementations of the same kernel text: a finding of its own kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tapml.compare.verdict import Status

Kind: TypeAlias = Literal["values", "verdicts"]


@dataclass(frozen=True)
class Reading:
    """What one implementation gave where they are farthest apart.

    Attributes
    ----------
    label
        The implementation.
    made_of
        Its compiler and driver.
    value
        What it computed; None where it computed nothing.
    units
        How far that lies from float64, in units of (sensitivity + ulp).
    status, reason
        Its own verdict on the test.
    group
        Implementations of one number agree.
    """

    label: str
    made_of: str
    value: float | None
    units: float | None
    status: Status
    reason: str
    group: int


@dataclass(frozen=True)
class Difference:
    """Implementations of the same text that give different results.

    Attributes
    ----------
    operator, kernels, platform
        What was run: the operator's name, its kernels', the platform they were compiled for.
    kind
        ``values``: outputs lie further apart than the policy lets one lie from float64.
        ``verdicts``: they do not, yet some pass and others do not.
    test, tests
        The test with the largest distance, and the number of tests that differ.
    output, index, elements
        Where the largest distance is; elements beyond the limit there. Empty where the verdicts
        alone differ.
    expected
        The oracle's value: float64's, at that place.
    distance, limit
        The largest distance between two of them and the policy's limit, in units.
    unit
        sensitivity + ulp there.
    readings
        One per implementation that ran the test.
    suspects
        The likely side at fault: whoever lies beyond the limit from float64, else the farthest.
    explanations
        What is known of a suspect's device that fits.
    compilers
        Each side's compilers of the kernels' text, as far as they are told.
    """

    operator: str
    kernels: tuple[str, ...]
    platform: str
    kind: Kind
    test: str
    tests: int
    output: str
    index: tuple[int, ...]
    elements: int
    expected: float | None
    distance: float
    limit: float
    unit: float
    readings: tuple[Reading, ...]
    suspects: tuple[str, ...]
    explanations: tuple[str, ...] = ()
    compilers: tuple[tuple[str, ...], ...] = ()

    @property
    def layer(self) -> str:
        """Whether the sides part as their compilers do; empty where these are not told."""
        told = [set(each) - {""} for each in self.compilers]
        if len(told) < 2 or not all(told):
            return ""
        shared = set.intersection(*told)
        if shared:
            return f"{', '.join(sorted(shared))} compiles for all sides: look at the drivers"
        if any(one & other for place, one in enumerate(told) for other in told[:place]):
            return ""
        sides = " against ".join(", ".join(sorted(each)) for each in told)
        return f"the sides have different compilers: {sides}"

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Who agrees with whom, large groups first."""
        numbers = sorted({reading.group for reading in self.readings})
        return tuple(
            tuple(each.label for each in self.readings if each.group == number)
            for number in numbers
        )

    @property
    def place(self) -> str:
        """``output_0[0, 3]``."""
        return f"{self.output}[{', '.join(map(str, self.index))}]" if self.output else ""

    @property
    def sides(self) -> str:
        """Who agrees, who stands alone."""
        groups = self.groups
        if all(len(group) == 1 for group in groups):
            *some, last = (group[0] for group in groups)
            return f"{', '.join(some)} and {last} differ from one another"
        return "; ".join(
            f"{', '.join(group)} agree" if len(group) > 1 else f"{group[0]} stands alone"
            for group in groups
        )

    @property
    def summary(self) -> str:
        """The difference in one line."""
        if self.kind == "verdicts":
            return f"{self.operator}: the verdicts differ: {self.sides}"
        apart = "no number of" if math.isinf(self.distance) else f"{self.distance:.3g}"
        return (
            f"{self.operator}: {self.place} of {self.test}: {apart} units apart, limit "
            f"{self.limit:.3g}: {self.sides}"
        )

    @property
    def differing(self) -> str:
        """How many tests differ, as words."""
        return "1 test differs" if self.tests == 1 else f"{self.tests} tests differ"

    @property
    def accused(self) -> str:
        """The likely side at fault, and why."""
        units = {each.label: each.units for each in self.readings}
        told = [
            f"{label} ({_units(units.get(label))} from float64)"
            if units.get(label) is not None
            else label
            for label in self.suspects
        ]
        if not told:
            return "nobody: all are as far from float64"
        everyone = len(told) == len(self.readings) and len(told) > 1
        return ("none is right: " if everyone else "") + ", ".join(told)

    def lines(self) -> list[str]:
        """The whole of it for a terminal."""
        kernels = ", ".join(self.kernels)
        found = [f"implementation difference: {self.summary}"]
        found.append(f"  kernel {kernels} ({self.platform}); {self.differing}")
        if self.expected is not None:
            found.append(
                f"  float64 gives {self.expected:.9g}; one unit (sensitivity + ulp) is "
                f"{self.unit:.3g}; further apart than the limit: {self.elements}"
            )
        width = max(len(each.label) for each in self.readings)
        for each in self.readings:
            value = "nothing" if each.value is None else f"{each.value:.9g}"
            units = "" if each.units is None else f", {_units(each.units)}"
            found.append(f"  {each.label:<{width}}  {value}{units}, {each.status}")
            if self.kind == "verdicts" and each.status != "pass":
                found.append(f"  {'':<{width}}  {each.reason}")
        found.append(f"  likely at fault: {self.accused}")
        if self.layer:
            found.append(f"    {self.layer}")
        found += [f"    {line}" for line in self.explanations]
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain data for strict JSON."""
        plain: dict[str, Any] = {
            name: plainly(value) for name, value in vars(self).items() if name != "readings"
        }
        plain["readings"] = [
            {name: plainly(value) for name, value in vars(each).items()} for each in self.readings
        ]
        return plain | {
            "groups": [list(group) for group in self.groups],
            "sides": self.sides,
            "summary": self.summary,
            "differing": self.differing,
            "accused": self.accused,
            "layer": self.layer,
        }


def plainly(value: Any) -> Any:
    """A value that strict JSON holds: Inf and NaN are text, tuples lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plainly(each) for each in value]
    return value


def _units(units: float | None) -> str:
    if units is None:
        return ""
    return "no number of units" if math.isinf(units) else f"{units:.3g} units"
