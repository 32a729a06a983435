"""Notices that a client says nothing, not even a heartbeat."""

from __future__ import annotations

import time
from typing import Final

_PROBE_SECONDS: Final = 1.0


class Silence:
    """One session's.

    Parameters
    ----------
    seconds
        The longest that is borne; 0 for any.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._heard = self._probed = time.monotonic()

    def broken(self, now: float) -> None:
        """The client has said something."""
        self._heard = now

    def check(self, now: float) -> float:
        """How long it has been, in seconds, once that is too long; else 0."""
        silence = now - self._heard
        return silence if 0 < self._seconds < silence else 0.0

    def asks_for_probe(self, now: float) -> bool:
        """Whether it is time to see if the client's connection is still there."""
        due = now - self._heard > 2 * _PROBE_SECONDS and now - self._probed > _PROBE_SECONDS
        if due:
            self._probed = now
        return due
