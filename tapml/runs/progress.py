"""The progress of a run, computed from its events for the terminal and the live file."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from tapml.runs.events import Event, PhaseEnded, PhaseProgressed, PhaseStarted

LIVE_FORMAT: Final = "tapml-live/1"


class Live(msgspec.Struct, kw_only=True):
    """The content of ``live.json``; a kind of work adds fields in a subclass.

    Attributes
    ----------
    format
        Name and version of the file format.
    running
        Whether the run is in progress.
    cut_off
        Whether the run died; only a reader sets it.
    version
        A number that grows with every write.
    process
        Process ID of the run.
    phase, detail, done, total, seconds_left
        The current phase, its progress and its estimated remaining time.
    """

    format: str = ""
    running: bool = False
    cut_off: bool = False
    version: int = 0
    process: int = 0
    phase: str = ""
    detail: str = ""
    done: int = 0
    total: int = 0
    seconds_left: float | None = None


@dataclass
class Progress:
    """The current phase of a run and its progress, updated by :meth:`apply`.

    Attributes
    ----------
    clock
        Monotonic seconds.
    phase, detail, done, total
        The current phase and its progress; empty and 0 between phases.
    phase_started
        Time when the current phase started, or the previous one ended.
    """

    clock: Callable[[], float] = time.monotonic
    phase: str = ""
    detail: str = ""
    done: int = 0
    total: int = 0
    phase_started: float = 0.0

    def __post_init__(self) -> None:
        self.phase_started = self.clock()

    def apply(self, event: Event) -> None:
        """Update the progress."""
        if isinstance(event, PhaseStarted):
            self.phase, self.detail = event.name, event.detail
            self.done, self.total = 0, event.total
            self.phase_started = self.clock()
        elif isinstance(event, PhaseProgressed):
            self.done, self.total, self.detail = event.done, event.total, event.detail
        elif isinstance(event, PhaseEnded) and event.name == self.phase:
            self.phase, self.detail, self.done, self.total = "", "", 0, 0
            self.phase_started = self.clock()

    @property
    def phase_seconds(self) -> float:
        """Time since the current phase started, or since the previous one ended."""
        return self.clock() - self.phase_started

    @property
    def seconds_left(self) -> float | None:
        """Estimated remaining time of the current phase; None if there is no estimate yet."""
        if not self.phase or not 0 < self.done < self.total:
            return None
        return self.phase_seconds / self.done * (self.total - self.done)

    def live(self) -> Live:
        """The progress as the live file holds it."""
        left = self.seconds_left
        return Live(
            phase=self.phase,
            detail=self.detail,
            done=self.done,
            total=self.total,
            seconds_left=None if left is None else round(left, 1),
        )
