"""The progress of a migration, computed from its events for the terminal and ``live.json``."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tapml.runs.events import Event, PhaseEnded, PhaseStarted
from tapml.runs.progress import Progress
from tapml.runs.wording import counted
from tapml.session.events import ModelRuns, OperatorChanged, OperatorsKnown, OperatorState
from tapml.session.live import ModelRunsLive, OperatorLive, SessionLive, VerdictsLive

MOVING: Final = "move operators"
# Shown between phases, when libraries are imported or files are written.
NO_PHASE: Final = "preparing"
SETTLED: Final = frozenset({"moved", "kept", "failed"})
ACTIVE: Final = frozenset({"compiling", "replaying", "model check"})
_REASON_CHARACTERS: Final = 300


@dataclass
class OperatorLine:
    """An operator's state and its latest data."""

    state: OperatorState = "waiting"
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def worst_ratio(self) -> float | None:
        """Its worst error ratio; None if it has none or it is not finite."""
        ratio = self.numbers.get("worst_ratio")
        return ratio if isinstance(ratio, int | float) and math.isfinite(ratio) else None

    @property
    def reason(self) -> str:
        """Why it is kept or failed, in one line."""
        return in_one_line(str(self.numbers.get("reason") or ""))[:_REASON_CHARACTERS]


@dataclass
class _Spent:
    """Time of steps that ran, as opposed to steps reused from the journal."""

    seconds: float = 0.0
    count: int = 0

    @property
    def mean(self) -> float:
        return self.seconds / self.count if self.count else 0.0


@dataclass
class RunState(Progress):
    """The state of a migration, updated by :meth:`apply`.

    Attributes
    ----------
    device
        The device's name, once it is open.
    operators
        Operators by name, in the model's order if that is known.
    operator_count
        Number of operators, including those without a name yet.
    current
        The current operator; empty between operators.
    model_runs, promised
        Model-wise runs so far, and the most that the strategy needs; 0 if it does not say.
    standing, again, fresh
        Numbers of operators with reused verdicts, repeated verdicts and first verdicts.
    reasons
        Changed dependencies of repeated verdicts, with the number of operators.
    """

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
    _step_started: float = 0.0
    _compiling: float = 0.0
    _replays: _Spent = field(default_factory=_Spent)
    _checks: _Spent = field(default_factory=_Spent)

    def apply(self, event: Event) -> None:
        """Update the state."""
        super().apply(event)
        if isinstance(event, PhaseStarted):
            if event.name == MOVING:
                self.operator_count = event.total
        elif isinstance(event, PhaseEnded):
            if not self.phase:
                self.current = ""
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
        """Numbers of operators by state; those without a name yet are waiting."""
        counts = Counter(str(line.state) for line in self.operators.values())
        counts["waiting"] += max(self.operator_count - len(self.operators), 0)
        return +counts

    @property
    def worst(self) -> tuple[float, str] | None:
        """The worst error ratio so far, and its operator."""
        rated = [
            (line.worst_ratio, name)
            for name, line in self.operators.items()
            if line.worst_ratio is not None
        ]
        return max(rated, default=None)

    @property
    def times(self) -> list[dict[str, Any]]:
        """The operators for :func:`tapml.session.model_times.model_times`."""
        return [
            {"name": name, "times": line.numbers.get("times") or {}}
            for name, line in self.operators.items()
        ]

    @property
    def step_seconds(self) -> float:
        """Time in the current operator's step."""
        return self.clock() - self._step_started if self.current else 0.0

    @property
    def step(self) -> str:
        """The current operator and its step; empty between operators."""
        if not self.current:
            return ""
        line = self.operators[self.current]
        where = {
            "compiling": "compiling on this machine",
            "replaying": f"replaying {counted(line.numbers.get('tests', 0), 'test')} on "
            f"{self.device}",
            "model check": f"running the model with it on {self.device}",
        }[line.state]
        return f"{self.current}: {where}"

    @property
    def seconds_left(self) -> float | None:
        """Estimated remaining time of the current phase; None if there is no estimate yet.

        While operators migrate, the estimate uses the replays and model-wise checks of this run.
        Reused verdicts take no time and do not count.
        """
        return self._moving_left() if self.phase == MOVING else super().seconds_left

    def live(self) -> SessionLive:
        """The state as the live file holds it."""
        common = msgspec.structs.asdict(super().live())
        return SessionLive(
            **common | {"detail": self.step or self.detail},
            device=self.device,
            current=self.current,
            model_runs=ModelRunsLive(self.model_runs, self.promised),
            verdicts=VerdictsLive(self.standing, self.again, self.fresh, dict(self.reasons)),
            operators={
                name: OperatorLive(line.state, line.worst_ratio, line.reason)
                for name, line in self.operators.items()
            },
        )

    def _moving_left(self) -> float | None:
        if not self._replays.count and not self._checks.count:
            return None
        counts = self.counts
        unreplayed = counts["waiting"] + counts["compiling"] + counts["replaying"]
        unchecked = unreplayed + counts["validated"] + counts["model check"]
        if self.promised:
            # An upper bound: results in the journal do not run again.
            unchecked = min(unchecked, max(self.promised - self.model_runs, 0))
        if not (unreplayed and self._replays.count) and not (unchecked and self._checks.count):
            # No step of the remaining kinds has run yet.
            return None if unreplayed + unchecked else 0.0
        left = unreplayed * self._replays.mean + unchecked * self._checks.mean
        line = self.operators.get(self.current)
        checking = line is not None and line.state == "model check"
        # A step that exceeds its mean must not reduce the estimate for other steps.
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
    """The first line; if it ends with a colon, followed by the first line with an error."""
    first, *others = [line.strip() for line in reason.splitlines() if line.strip()] or [""]
    if not first.endswith(":") or not others:
        return first
    return f"{first} {next((line for line in others if 'error' in line.lower()), others[0])}"
