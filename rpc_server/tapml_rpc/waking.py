"""Wakes a thread that waits for descriptors, from any other one."""

from __future__ import annotations

import os
import threading
from contextlib import suppress


class Waker:
    """A pipe; wait for its :meth:`fileno`."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._lock = threading.Lock()
        self._closed = False

    def fileno(self) -> int:
        """What becomes readable."""
        return self._reader

    def wake(self) -> None:
        """Make it readable; from any thread, also once it is closed."""
        # The number of a closed descriptor may be another file's by now.
        with self._lock, suppress(BlockingIOError):
            if not self._closed:
                os.write(self._writer, b".")

    def drain(self) -> None:
        """Read what made it readable, before checking what it was for."""
        with suppress(BlockingIOError):
            os.read(self._reader, 4096)

    def close(self) -> None:
        """Close both ends; called by the waiting thread, or when none waits any more."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._reader)
                os.close(self._writer)
