"""What a process that starts others needs: their last output, how they ended, whether they work."""

from __future__ import annotations

import os
import select
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

_PIECE_BYTES: Final = 16 << 10
# Bytes read at a time while the lock is held: more than a pipe holds, and never without end.
_PIECES: Final = 16


class OutputTail:
    """Reads a pipe, which it closes, to its end on a thread, and keeps only the last bytes."""

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
        """The last output, even of a process that has just ended, without white space."""
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


def describe_exit(code: int) -> str:
    """How a process ended, by its exit code as Python gives it."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def is_busy(pid: int) -> bool:
    """Whether a thread of a process or its children (PoCL's linker) runs, or waits for a disk."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            # The name before the state is in parentheses and may contain some.
            if (task / "stat").read_bytes().rpartition(b")")[2].split()[0] in (b"R", b"D"):
                return True
            if any(is_busy(int(child)) for child in (task / "children").read_bytes().split()):
                return True
    return False
