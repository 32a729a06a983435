"""Notices that a worker has batches and begins none."""

from __future__ import annotations

import time
from typing import Final

from tapml_rpc.supervisor.worker_process import WorkerProcess

# Seconds it may do so, and seconds if it waits for a processor or a disk.
_IDLE_SECONDS: Final = 3.0
_BUSY_SECONDS: Final = 60.0


class Standstill:
    """Watches one session's worker."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._worker = worker
        # When it last had nothing to do, or did something.
        self._moved = time.monotonic()

    def moved(self, now: float) -> None:
        """It runs a command, or has answered a batch."""
        self._moved = now

    def check(self, now: float, *, has_none: bool) -> float:
        """How long a worker that runs no command has stood still, in seconds; 0 if not too long.

        `now` is by the monotonic clock; `has_none`: there is no batch to begin.
        """
        if has_none or self._worker.waits_for_its_client():
            self._moved = now
            return 0.0
        idle = now - self._moved
        return idle if idle > (_BUSY_SECONDS if self._worker.busy() else _IDLE_SECONDS) else 0.0
