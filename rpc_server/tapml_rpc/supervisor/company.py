"""Which sessions have had work for the device lately, and whether one of them is alone.

A session alone sends ahead as far as its window goes, and its worker answers before the device is
done. Where another has work too, each worker has one batch at a time on the device and answers once
that is done: so no session's queue on the device delays another.
"""

from __future__ import annotations

import threading
import time
from typing import Final

# How long a session counts that has worked: longer than it takes to look at all of them.
_LATELY_SECONDS: Final = 0.5


class Company:
    """The sessions of one device. Callable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worked: dict[bytes, float] = {}

    def note(self, token: bytes, now: float | None = None) -> None:
        """A session works, at this time by the monotonic clock."""
        with self._lock:
            self._worked[token] = time.monotonic() if now is None else now

    def beside(self, token: bytes, now: float | None = None) -> bool:
        """Whether another session than this one has worked lately."""
        now = time.monotonic() if now is None else now
        with self._lock:
            return any(
                now - worked < _LATELY_SECONDS
                for other, worked in self._worked.items()
                if other != token
            )

    def leave(self, token: bytes) -> None:
        """A session has ended."""
        with self._lock:
            self._worked.pop(token, None)
