"""Keeps the end of a child process's output, within a fixed number of bytes."""

from __future__ import annotations

import os
import select
import threading
from contextlib import suppress
from typing import IO, Final

_PIECE_BYTES: Final = 16 << 10
# Bytes read at a time while the lock is held: more than a pipe holds, and never without end.
_PIECES: Final = 16


class OutputTail:
    """Reads a pipe, which it closes, to its end on a thread, and keeps the last bytes.

    Nothing else is kept, whether the process prints lines or not.
    """

    def __init__(self, source: IO[bytes], most_bytes: int) -> None:
        self._source = source
        self._most = most_bytes
        self._kept = bytearray()
        self._ended = False
        self._lock = threading.Lock()
        os.set_blocking(source.fileno(), False)
        self._reader = threading.Thread(target=self._read, name="tapml-output-tail", daemon=True)
        self._reader.start()

    def text(self) -> str:
        """The last output, without surrounding white space.

        Includes the last output of a process that has just ended.
        """
        with self._lock:
            # The reader may not have run since the process wrote.
            self._take()
            return self._kept.decode("utf-8", "replace").strip()

    def wait(self, seconds: float) -> None:
        """Wait until the pipe has ended; children of the process may hold it open."""
        self._reader.join(seconds)

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        while not self._ended:
            poll.poll()
            with self._lock:
                self._take()
        self._source.close()

    def _take(self) -> None:
        with suppress(BlockingIOError):
            for _ in range(_PIECES):
                if self._ended:
                    return
                piece = os.read(self._source.fileno(), _PIECE_BYTES)
                self._ended = not piece
                self._kept += piece
                del self._kept[: -self._most]
