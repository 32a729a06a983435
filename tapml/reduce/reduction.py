"""The result of a reduction: a smaller failing test, and the sizes before and after."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

from tapml.replaying.failure import Failure

FORMAT: Final = "tapml-reduced/1"
DOCUMENT: Final = "reduced.json"
"""The file in the reduced folder with the sizes before and after."""


Ending: TypeAlias = Literal["smallest", "time", "interrupted"]


@dataclass(frozen=True)
class Size:
    """The size of a test.

    Attributes
    ----------
    shapes
        By parameter.
    elements
        Of all inputs and outputs.
    nonzero
        Nonzero elements of the inputs.
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
    """A smaller failing test and its statistics.

    Attributes
    ----------
    failure
        The content of its repro folder.
    before, after
        Sizes.
    reason_before, reason_after
        Reasons of the verdicts.
    kind
        The kind of failure that was preserved.
    trials, kept
        Candidates that were run, and those that were kept.
    device_losses
        Candidates that crashed the device; none of them counts as the same failure.
    recompiled
        Whether the kernel was recompiled for smaller static extents.
    ended
        ``smallest``, ``time`` or ``interrupted``.
    notes
        Steps that were not possible, with reasons.
    seconds
        Elapsed time.
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
        """The content of ``reduced.json``."""
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
        """The reduction as text."""
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
            lines.append("  the kernel was recompiled for smaller static extents")
        return [*lines, *(f"  note: {note}" for note in self.notes)]
