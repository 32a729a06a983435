"""Wakes a thread that waits for descriptors, from any other one."""

from __future__ import annotations

import os
import threading
from contextlib import suppress


class Waker:
    """A pipe whose end to wait for is :meth:`fileno`."""

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
        # A number that is closed may be another file's by now.
        with self._lock, suppress(BlockingIOError):
            if not self._closed:
                os.write(self._writer, b".")

    def drain(self) -> None:
        """Take what made it readable, before looking at what it was for."""
        with suppress(BlockingIOError):
            os.read(self._reader, 4096)

    def close(self) -> None:
        """Give both ends back; the waiting thread does this, or nobody waits any more."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._reader)
                os.close(self._writer)
