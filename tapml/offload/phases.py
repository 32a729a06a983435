"""Timed phases of a session: the rows of the paper's table III."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from tapml.offload.events import PhaseEnded, PhaseProgressed, PhaseStarted, Watcher
from tapml.offload.journal import Journal

REFERENCE: Final = "CPU, LLVM in process"
HOST: Final = "host"


@dataclass
class Phase:
    """A phase in progress; `detail` is what its end line says."""

    name: str
    watcher: Watcher
    detail: str = ""

    def progress(self, done: int, total: int = 0, detail: str = "") -> None:
        """Say how far it is."""
        self.watcher(PhaseProgressed(self.name, done, total, detail))


@dataclass(frozen=True)
class Phases:
    """Opens phases: announces them, times them, writes them to the journal where there is one.

    A phase's group is ``rooting`` (running the whole model on the target, needed however one
    works) or ``overhead`` (what carving and moving step by step adds).
    """

    watcher: Watcher
    journal: Journal | None = None

    @contextmanager
    def phase(
        self,
        name: str,
        *,
        group: Literal["rooting", "overhead"],
        platform: str,
        once: bool,
    ) -> Iterator[Phase]:
        """Time the block as one phase; a block that raises leaves no row."""
        phase = Phase(name, self.watcher)
        self.watcher(PhaseStarted(name))
        started = time.monotonic()
        yield phase
        self.record(
            name,
            time.monotonic() - started,
            group=group,
            platform=platform,
            once=once,
            detail=phase.detail,
        )

    def record(
        self, name: str, seconds: float, *, group: str, platform: str, once: bool, detail: str = ""
    ) -> None:
        """Write a phase that was timed elsewhere."""
        self.watcher(PhaseEnded(name, seconds, detail))
        if self.journal is None:
            return
        self.journal.append(
            "phase",
            name=name,
            seconds=seconds,
            group=group,
            platform=platform,
            once=once,
            detail=detail,
        )
