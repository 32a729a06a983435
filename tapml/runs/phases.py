"""Timed phases of a run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tapml.runs.events import PhaseEnded, PhaseProgressed, PhaseStarted, Watcher
from tapml.runs.journal import Journal


@dataclass
class Phase:
    """A phase in progress; `detail` is for its end line."""

    name: str
    watcher: Watcher
    detail: str = ""

    def progress(self, done: int, total: int = 0, detail: str = "") -> None:
        """Report progress."""
        self.watcher(PhaseProgressed(self.name, done, total, detail))


@dataclass(frozen=True)
class Phases:
    """Announces and times phases, and writes them with their labels to the journal, if any."""

    watcher: Watcher
    journal: Journal | None = None

    @contextmanager
    def phase(self, name: str, *, total: int = 0, **labels: str | bool) -> Iterator[Phase]:
        """Time the block as one phase; a block that raises is not recorded."""
        phase = Phase(name, self.watcher)
        self.watcher(PhaseStarted(name, total=total))
        started = time.monotonic()
        yield phase
        self.record(name, time.monotonic() - started, detail=phase.detail, **labels)

    def record(self, name: str, seconds: float, *, detail: str = "", **labels: str | bool) -> None:
        """Record a phase that was timed elsewhere."""
        self.watcher(PhaseEnded(name, seconds, detail))
        if self.journal is not None:
            self.journal.append("phase", name=name, seconds=seconds, detail=detail, **labels)
