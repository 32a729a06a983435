"""Notices that a client sends nothing, not even a heartbeat."""

from __future__ import annotations

import time
from typing import Final

_PROBE_SECONDS: Final = 1.0


class Silence:
    """One session's; more than `seconds` of silence are too long, 0 for any."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._heard = self._probed = time.monotonic()

    def broken(self, now: float) -> None:
        """The client has sent something."""
        self._heard = now

    def check(self, now: float) -> float:
        """The length of the silence in seconds once that is too long; else 0."""
        silence = now - self._heard
        return silence if 0 < self._seconds < silence else 0.0

    def asks_for_probe(self, now: float) -> bool:
        """Whether it is time to check that the client's connection still exists."""
        due = now - self._heard > 2 * _PROBE_SECONDS and now - self._probed > _PROBE_SECONDS
        if due:
            self._probed = now
        return due
