"""A finding: a difference between implementations that ran the same kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tapml.durable.strict_json import to_strict
from tapml.verdicts.verdict import Status

Kind: TypeAlias = Literal["values", "verdicts"]


@dataclass(frozen=True)
class Reading:
    """The value of one implementation at the largest distance.

    Attributes
    ----------
    label
        The implementation.
    made_of
        Its compiler and driver.
    value
        The computed value, if any.
    units
        Its distance from float64, in units of (sensitivity + ulp).
    status, reason
        Its verdict on the test.
    group
        Implementations with the same number agree.
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
    """Implementations of the same kernel that give different results.

    Attributes
    ----------
    operator, kernels, platform
        Names of the operator and its kernels, and their platform.
    kind
        ``values``: outputs differ by more than the policy allows between one of them and float64.
        ``verdicts``: they do not, but some pass and others do not.
    test, tests
        The test with the largest distance, and the number of tests that differ.
    output, index, elements
        Position of the largest distance, and number of elements beyond the limit. Empty if only
        the verdicts differ.
    expected
        The float64 value at that position.
    distance, limit
        The largest distance between two of them, and the policy's limit, in units.
    unit
        sensitivity + ulp at that position.
    readings
        One per implementation that ran the test.
    suspects
        Implementations that are probably wrong: beyond the limit from float64, else the farthest.
    explanations
        Facts about a suspect's device that may explain its value.
    compilers
        Each side's kernel compilers, if known.
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
        """Whether compilers or drivers separate the sides; empty if unknown."""
        known = [set(each) - {""} for each in self.compilers]
        if len(known) < 2 or not all(known):
            return ""
        shared = set.intersection(*known)
        if shared:
            return f"{', '.join(sorted(shared))} compiles for all sides: suspect the drivers"
        if any(one & other for place, one in enumerate(known) for other in known[:place]):
            return ""
        sides = " against ".join(", ".join(sorted(each)) for each in known)
        return f"the sides have different compilers: {sides}"

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Implementations that agree, largest group first."""
        numbers = sorted({reading.group for reading in self.readings})
        return tuple(
            tuple(each.label for each in self.readings if each.group == number)
            for number in numbers
        )

    @property
    def place(self) -> str:
        """The position, such as ``output_0[0, 3]``."""
        return f"{self.output}[{', '.join(map(str, self.index))}]" if self.output else ""

    @property
    def sides(self) -> str:
        """Which implementations agree, as a sentence."""
        groups = self.groups
        if all(len(group) == 1 for group in groups):
            *some, last = (group[0] for group in groups)
            return f"{', '.join(some)} and {last} differ from one another"
        return "; ".join(
            f"{', '.join(group)} agree" if len(group) > 1 else f"{group[0]} differs"
            for group in groups
        )

    @property
    def summary(self) -> str:
        """The difference in one line."""
        if self.kind == "verdicts":
            return f"{self.operator}: the verdicts differ: {self.sides}"
        return (
            f"{self.operator}: {self.place} of {self.test}: {_units(self.distance)} apart, limit "
            f"{self.limit:.3g}: {self.sides}"
        )

    @property
    def differing(self) -> str:
        """The number of tests that differ, as text."""
        return "1 test differs" if self.tests == 1 else f"{self.tests} tests differ"

    @property
    def accused(self) -> str:
        """The implementations that are probably wrong, with their distances from float64."""
        units = {each.label: each.units for each in self.readings}
        suspects = [
            f"{label} ({_units(units.get(label))} from float64)"
            if units.get(label) is not None
            else label
            for label in self.suspects
        ]
        if not suspects:
            return "unknown: all are equally far from float64"
        everyone = len(suspects) == len(self.readings) and len(suspects) > 1
        return ("all are wrong: " if everyone else "") + ", ".join(suspects)

    def lines(self) -> list[str]:
        """The difference as lines for a terminal."""
        kernels = ", ".join(self.kernels)
        found = [f"implementation difference: {self.summary}"]
        found.append(f"  kernel {kernels} ({self.platform}); {self.differing}")
        if self.expected is not None:
            found.append(
                f"  float64 gives {self.expected:.9g}; one unit (sensitivity + ulp) is "
                f"{self.unit:.3g}; elements beyond the limit: {self.elements}"
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
            name: to_strict(value) for name, value in vars(self).items() if name != "readings"
        }
        plain["readings"] = [
            {name: to_strict(value) for name, value in vars(each).items()} for each in self.readings
        ]
        return plain | {
            "groups": [list(group) for group in self.groups],
            "sides": self.sides,
            "summary": self.summary,
            "differing": self.differing,
            "accused": self.accused,
            "layer": self.layer,
        }


def _units(units: float | None) -> str:
    if units is None:
        return ""
    return "∞ units" if math.isinf(units) else f"{units:.3g} units"
