"""A smaller failing test, and from what to what it was reduced."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

from tapml.carving.repro_failure import Failure

FORMAT: Final = "tapml-reduced/1"
DOCUMENT: Final = "reduced.json"
"""The file in the reduced folder that says from what to what."""


Ending: TypeAlias = Literal["smallest", "time", "interrupted"]


@dataclass(frozen=True)
class Size:
    """How large a test is.

    Attributes
    ----------
    shapes
        By parameter.
    elements
        Of all inputs and outputs.
    nonzero
        Elements of the inputs that are not zero.
    long_values
        Floating-point elements of the inputs that are neither integers below 100 nor decimals of
        up to three digits.
    """

    shapes: dict[str, tuple[int, ...]]
    elements: int
    nonzero: int
    long_values: int


@dataclass(frozen=True)
class Reduction:
    """A smaller failing test and how it was found.

    Attributes
    ----------
    failure
        What its repro folder is made from.
    before, after
        Sizes.
    reason_before, reason_after
        What the verdicts say.
    kind
        The kind of failure that stayed.
    trials, kept
        Candidates that were run, and those that were taken.
    device_losses
        Candidates that took the device down; none of them counts as the same failure.
    recompiled
        Whether the kernel was compiled anew for smaller static extents.
    ended
        ``smallest``, ``time`` or ``interrupted``.
    notes
        What could not be done, and why.
    seconds
        How long it took.
    """

    failure: Failure
    before: Size
    after: Size
    reason_before: str
    reason_after: str
    kind: str
    trials: int
    kept: int
    device_losses: int
    recompiled: bool
    ended: Ending
    notes: tuple[str, ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """What ``reduced.json`` holds."""
        data = {
            name: getattr(self, name)
            for name in (
                "kind", "reason_before", "reason_after", "trials", "kept", "device_losses",
                "recompiled", "ended", "seconds",
            )
        }  # fmt: skip
        return {
            "format": FORMAT,
            "from": asdict(self.before),
            "to": asdict(self.after),
            **data,
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """The reduction for a person."""
        lines = []
        for name, old in self.before.shapes.items():
            new = self.after.shapes[name]
            lines.append(f"  {name}: {list(old)}" + ("" if new == old else f" -> {list(new)}"))
        for word, old_count, new_count in (
            ("elements", self.before.elements, self.after.elements),
            ("nonzero input elements", self.before.nonzero, self.after.nonzero),
            ("long input values", self.before.long_values, self.after.long_values),
        ):
            lines.append(f"  {word}: {old_count} -> {new_count}")
        if self.recompiled:
            lines.append("  the kernel was compiled anew for smaller static extents")
        return [*lines, *(f"  note: {note}" for note in self.notes)]
