"""What wakes a thread that waits for descriptors, and what stops a server's process."""

from __future__ import annotations

import os
import select
import signal
import threading
from contextlib import suppress
from types import FrameType


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


class StopRequest:
    """Signals and the end of the process `parent`, 0 for none."""

    def __init__(self, parent: int = 0) -> None:
        self._asked = False
        self._parent = parent
        # The parent holds the other end of standard input open while it lives.
        self.wake_fds = (0,) if parent else ()
        signal.signal(signal.SIGTERM, self._note)
        signal.signal(signal.SIGINT, self._note)

    def asked(self) -> bool:
        """Whether to stop."""
        if self._parent and not self._asked:
            ended = bool(select.select([0], [], [], 0)[0]) and not os.read(0, 4096)
            self._asked = ended or os.getppid() != self._parent
        return self._asked

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
