"""Where a run stands, gathered from its events: what the terminal and ``live.json`` show."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tapml.offload.events import (
    Event,
    ModelRuns,
    OperatorChanged,
    OperatorsKnown,
    OperatorState,
    PhaseEnded,
    PhaseProgressed,
    PhaseStarted,
)

MOVING: Final = "move operators"
# What is under way where no phase is: libraries are imported, files are written.
NO_PHASE: Final = "preparing"
SETTLED: Final = frozenset({"moved", "kept", "failed"})
ACTIVE: Final = frozenset({"compiling", "replaying", "model check"})
_REASON_CHARACTERS: Final = 300


@dataclass
class OperatorLine:
    """An operator's state and what was last told about it."""

    state: OperatorState = "waiting"
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def worst_ratio(self) -> float | None:
        """Its worst error ratio; None where it has none or none that is finite."""
        ratio = self.numbers.get("worst_ratio")
        return ratio if isinstance(ratio, int | float) and math.isfinite(ratio) else None

    @property
    def reason(self) -> str:
        """Why it is kept or failed, in one line."""
        return in_one_line(str(self.numbers.get("reason") or ""))[:_REASON_CHARACTERS]


@dataclass
class _Spent:
    """Time of steps that were made, as opposed to taken from the journal."""

    seconds: float = 0.0
    count: int = 0

    @property
    def mean(self) -> float:
        return self.seconds / self.count if self.count else 0.0


@dataclass
class RunState:
    """A run as its events have told it so far; feed it every event with :meth:`apply`.

    Attributes
    ----------
    clock
        Monotonic seconds.
    phase, detail, done, total
        The phase in hand and how far it is; empty and 0 between phases.
    device
        What the device is called, once it is open.
    operators
        By name; in the model's order where that was told, else as they came.
    operator_count
        How many there are, known or not.
    current
        The operator in hand, while one is.
    model_runs, promised
        Model-wise runs made, and at most to be made; both 0 where the strategy does not say.
    standing, again, fresh
        Operators settled with the journal's verdicts alone, with verdicts made again, and without
        earlier ones.
    reasons
        What had changed, of how many operators that were made again.
    """

    clock: Callable[[], float] = time.monotonic
    phase: str = ""
    detail: str = ""
    done: int = 0
    total: int = 0
    device: str = ""
    operators: dict[str, OperatorLine] = field(default_factory=dict)
    operator_count: int = 0
    current: str = ""
    model_runs: int = 0
    promised: int = 0
    standing: int = 0
    again: int = 0
    fresh: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    phase_started: float = 0.0
    _step_started: float = 0.0
    _compiling: float = 0.0
    _replays: _Spent = field(default_factory=_Spent)
    _checks: _Spent = field(default_factory=_Spent)

    def __post_init__(self) -> None:
        self.phase_started = self.clock()

    def apply(self, event: Event) -> None:
        """Take in what has happened."""
        if isinstance(event, PhaseStarted):
            self.phase, self.detail = event.name, event.detail
            self.done, self.total = 0, event.total
            self.phase_started = self.clock()
            if event.name == MOVING:
                self.operator_count = event.total
        elif isinstance(event, PhaseProgressed):
            self.done, self.total, self.detail = event.done, event.total, event.detail
        elif isinstance(event, PhaseEnded):
            if event.name == self.phase:
                self.phase, self.detail, self.done, self.total = "", "", 0, 0
                self.current, self.phase_started = "", self.clock()
            if event.name == "open device":
                self.device = event.detail
        elif isinstance(event, OperatorsKnown):
            self.operators = {name: OperatorLine() for name in event.names}
            self.operator_count = len(event.names)
        elif isinstance(event, OperatorChanged):
            self._operator(event)
        elif isinstance(event, ModelRuns):
            self.model_runs, self.promised = event.done, event.promised

    @property
    def counts(self) -> Counter[str]:
        """Operators by state, those that were not named yet among the waiting."""
        counts = Counter(str(line.state) for line in self.operators.values())
        counts["waiting"] += max(self.operator_count - len(self.operators), 0)
        return +counts

    @property
    def worst(self) -> tuple[float, str] | None:
        """The worst error ratio so far and whose it is."""
        rated = [
            (line.worst_ratio, name)
            for name, line in self.operators.items()
            if line.worst_ratio is not None
        ]
        return max(rated, default=None)

    @property
    def times(self) -> list[dict[str, Any]]:
        """Operators as :func:`tapml.offload.model_times.model_times` takes them."""
        return [
            {"name": name, "times": line.numbers.get("times") or {}}
            for name, line in self.operators.items()
        ]

    @property
    def phase_seconds(self) -> float:
        """Time in the phase in hand, or since the one before it ended."""
        return self.clock() - self.phase_started

    @property
    def step_seconds(self) -> float:
        """Time in the step of the operator in hand."""
        return self.clock() - self._step_started if self.current else 0.0

    @property
    def step(self) -> str:
        """The operator in hand and where it is; empty between two of them."""
        if not self.current:
            return ""
        line = self.operators[self.current]
        where = {
            "compiling": "compiling on this machine",
            "replaying": f"replaying {counted(line.numbers.get('tests', 0), 'test')} on "
            f"{self.device}",
            "model check": f"the whole model, with it on {self.device}",
        }[line.state]
        return f"{self.current}: {where}"

    @property
    def seconds_left(self) -> float | None:
        """What the phase in hand will still take; None until there is something to go by.

        While operators move it goes by what replays and model-wise checks took that were made in
        this run: a verdict of the journal costs nothing and says nothing about the next.
        """
        if not self.phase:
            return None
        if self.phase == MOVING:
            return self._moving_left()
        if not 0 < self.done < self.total:
            return None
        return self.phase_seconds / self.done * (self.total - self.done)

    def _moving_left(self) -> float | None:
        if not self._replays.count and not self._checks.count:
            return None
        counts = self.counts
        unreplayed = counts["waiting"] + counts["compiling"] + counts["replaying"]
        unchecked = unreplayed + counts["validated"] + counts["model check"]
        if self.promised:
            # A promise is an upper bound: what the journal holds is not run.
            unchecked = min(unchecked, max(self.promised - self.model_runs, 0))
        if not (unreplayed and self._replays.count) and not (unchecked and self._checks.count):
            # Of what is left nothing was made yet.
            return None if unreplayed + unchecked else 0.0
        left = unreplayed * self._replays.mean + unchecked * self._checks.mean
        line = self.operators.get(self.current)
        checking = line is not None and line.state == "model check"
        # A step that takes longer than one does has used up its own time, not that of others.
        step = self._checks.mean if checking else self._replays.mean
        return max(left - min(self.step_seconds, step), 0.0)

    def _operator(self, event: OperatorChanged) -> None:
        line = self.operators.setdefault(event.operator, OperatorLine())
        now = self.clock()
        before, spent = line.state, now - self._step_started
        if self.current == event.operator:
            if before == "compiling":
                self._compiling = spent
            elif before == "replaying":
                self._replays.seconds += self._compiling + spent
                self._replays.count += 1
            elif before == "model check" and not event.numbers.get("reused"):
                self._checks.seconds += spent
                self._checks.count += 1
        settled_before = before in SETTLED
        line.state = event.state
        line.numbers = line.numbers | event.numbers
        self.done, self.total = event.done, event.total
        self.operator_count = max(self.operator_count, event.total)
        self.current = event.operator if event.state in ACTIVE else ""
        self._step_started = now
        if event.state in SETTLED and not settled_before:
            self._settle(line)

    def _settle(self, line: OperatorLine) -> None:
        reasons = line.numbers.get("again") or ()
        if line.numbers.get("reused"):
            self.standing += 1
        elif reasons:
            self.again += 1
            self.reasons.update(map(str, reasons))
        elif line.numbers.get("tests"):
            self.fresh += 1


def in_one_line(reason: str) -> str:
    """The first line; where it announces others, the first of them that speaks of an error."""
    first, *others = [line.strip() for line in reason.splitlines() if line.strip()] or [""]
    if not first.endswith(":") or not others:
        return first
    return f"{first} {next((line for line in others if 'error' in line.lower()), others[0])}"


def counted(count: int, thing: str) -> str:
    """A number of things: 1 test, 2 tests."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def duration(seconds: float) -> str:
    """A length of time in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
