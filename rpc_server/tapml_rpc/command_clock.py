"""Which command the device is at, and since when: for whoever watches the deadline."""

from __future__ import annotations

import time
from typing import Protocol, TypeAlias

from tapml_rpc.running_batch import RunningBatch
from tapml_rpc.server_session import ServerSession

# The session, the command, when it began, and its place: see RunningBatch.
Running: TypeAlias = tuple[ServerSession, object, float, int]


class CommandClock(Protocol):
    """Told on the device thread before every command, which may take microseconds: it is quick."""

    def begin(self, batch: RunningBatch) -> None:
        """The command that `batch` says runs from now on, whatever ran before it."""

    def rest(self) -> None:
        """None runs: no time of a command passes."""


class RunningCommand:
    """A clock for another thread of this process.

    Attributes
    ----------
    running
        What the device is doing now; None while idle.
    """

    def __init__(self) -> None:
        self.running: Running | None = None

    def begin(self, batch: RunningBatch) -> None:
        """See :class:`CommandClock`."""
        self.running = (batch.session, batch.command, time.monotonic(), batch.place)

    def rest(self) -> None:
        """See :class:`CommandClock`."""
        self.running = None
