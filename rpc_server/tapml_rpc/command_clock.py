"""Which command the device runs, and since when, for the deadline."""

from __future__ import annotations

import time
from typing import Protocol, TypeAlias

from tapml_rpc.running_batch import RunningBatch
from tapml_rpc.server_session import ServerSession

# The session, the command, when it began, and its place: see RunningBatch.
Running: TypeAlias = tuple[ServerSession, object, float, int]


class CommandClock(Protocol):
    """Quick: called on the device thread before every command, which may take microseconds."""

    def begin(self, batch: RunningBatch) -> None:
        """The command of `batch` runs from now on, whatever ran before it."""

    def rest(self) -> None:
        """No command runs: no time passes for any."""


class RunningCommand:
    """A clock for another thread of this process; `running` is None while the device is idle."""

    def __init__(self) -> None:
        self.running: Running | None = None

    def begin(self, batch: RunningBatch) -> None:
        """The command of `batch` runs from now on."""
        self.running = (batch.session, batch.command, time.monotonic(), batch.place)

    def rest(self) -> None:
        """No command runs."""
        self.running = None
