"""Progress lines about operators; many similar ones are summed up."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from tapml.runs.wording import counted, duration
from tapml.session.events import OperatorChanged
from tapml.session.model_times import multiple
from tapml.session.run_state import SETTLED, RunState, in_one_line

# List at most this many operators kept on the source.
_KEPT_LISTED: Final = 3
_REASONS_SHOWN: Final = 3
# States worth a line: a validated operator may wait long for the model's run.
REPORTED: Final = SETTLED | {"validated"}


def operator_line(event: OperatorChanged) -> str:
    """One operator's result in a line: tests, worst ratio, time on the target."""
    numbers = event.numbers
    parts = [counted(numbers["tests"], "test")] if "tests" in numbers else []
    if numbers.get("probes"):
        parts.append(counted(numbers["probes"], "exact probe"))
    ratio = numbers.get("worst_ratio")
    if ratio is not None and numbers.get("tests"):
        parts.append(
            f"worst ratio {ratio:.3g}" if math.isfinite(ratio) else "worst ratio not finite"
        )
    times = numbers.get("times") or {}
    if times.get("ratio"):
        parts.append(f"{times['target_ms']:.3g} ms, {multiple(times['ratio'])} x the reference's")
    if numbers.get("written"):
        parts.append("written by hand")
    if numbers.get("placement"):
        parts.append(str(numbers["placement"]))
    if numbers.get("reused"):
        parts.append("from the journal")
    elif numbers.get("again"):
        parts.append(f"made again: {', '.join(map(str, numbers['again'][:_REASONS_SHOWN]))}")
    parts += map(str, numbers.get("suspects", ()))
    if event.state in {"failed", "kept"} and numbers.get("reason"):
        parts.append(in_one_line(str(numbers["reason"])))
    return ", ".join(parts)


def remaining(state: RunState) -> str:
    """Time left in the current phase; empty if unknown."""
    left = state.seconds_left
    return "" if left is None else f"{duration(left)} left"


def verdicts_text(state: RunState) -> str:
    """How many verdicts come from the journal, how many were made again, and why."""
    parts = [f"{state.standing} from the journal"] if state.standing else []
    if state.again:
        reasons = ", ".join(name for name, _ in state.reasons.most_common(_REASONS_SHOWN))
        parts.append(f"{state.again} made again ({reasons})")
    return ", ".join(parts)


@dataclass
class HeldBack:
    """Results without a line each.

    These are operators moved by the journal's verdicts, which the session sums up, operators that
    were reported when they were validated, and operators kept on the source, which are reported
    before the next line.
    """

    kept: list[OperatorChanged] = field(default_factory=list)
    validated: set[str] = field(default_factory=set)

    def take(self, event: OperatorChanged) -> bool:
        """Whether the event is held back."""
        if event.state == "kept":
            self.kept.append(event)
            return True
        if event.state == "moved" and event.operator in self.validated:
            return True
        if event.state == "validated":
            self.validated.add(event.operator)
        return event.state != "failed" and bool(event.numbers.get("reused"))

    def release(self) -> tuple[str, list[OperatorChanged]]:
        """A summary, empty if there is none, and operators to list."""
        kept, self.kept = self.kept, []
        if len(kept) <= _KEPT_LISTED:
            return "", kept
        names = ", ".join(event.operator for event in kept[:_KEPT_LISTED])
        more = len(kept) - _KEPT_LISTED
        return f"{len(kept)} operators stay on the source as asked: {names} and {more} more", []
