"""The end of what a process prints, however much it prints and for however long."""

from __future__ import annotations

import os
import select
import threading
from contextlib import suppress
from typing import IO, Final

_PIECE_BYTES: Final = 16 << 10
# Of what is printed without an end others have their turn.
_PIECES: Final = 16


class LastWords:
    """Reads a pipe to its end, on a thread of its own, and keeps what came last.

    A file would grow with every line of a browser that runs for weeks.

    Parameters
    ----------
    source
        The pipe's reading end; this object's from now on.
    most_bytes
        What is kept.
    """

    def __init__(self, source: IO[bytes], most_bytes: int) -> None:
        self._source = source
        self._most = most_bytes
        self._kept = bytearray()
        self._ended = False
        self._lock = threading.Lock()
        os.set_blocking(source.fileno(), False)
        self._reader = threading.Thread(target=self._read, name="tapml-last-words", daemon=True)
        self._reader.start()

    def text(self) -> str:
        """What was printed last, up to this moment."""
        with self._lock:
            # A process that has just ended left its last lines in the pipe.
            self._take()
            return self._kept.decode("utf-8", "replace").strip()

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
