"""A trace read while its job writes it, step by step."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow as pa

from tapml.invariants.record import BEFORE_TRAINING, Row, Window, windows_of
from tapml.invariants.trace import SUFFIX, Trace, rows_of, trace_of

_POLL_SECONDS: Final = 0.05
LET_GO_BYTES: Final = 1 << 22
"""Of a file that is followed, so much more than what is not read yet may be on the disk."""
_KEEP_SIZE_PUNCH_HOLE: Final = 3


class _Growing:
    """A file that another process writes; a read waits for its bytes until the job has ended."""

    def __init__(self, path: Path, ended: Callable[[], bool]) -> None:
        # It is written to in no other way than to let go of what was read.
        self._file = path.open("r+b", buffering=0)
        self._ended = ended
        self._read = self._gone = 0

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._file.closed

    def close(self) -> None:
        """Close it."""
        self._file.close()

    def read(self, size: int) -> bytes:
        """All bytes asked for; fewer only at the end of a job."""
        found = b""
        while len(found) < size:
            # Asked first: what is written before the end is read after it.
            over = self._ended()
            part = self._file.read(size - len(found))
            found += part
            self._read += len(part)
            if not part:
                if over:
                    break
                time.sleep(_POLL_SECONDS)
        if self._read - self._gone >= LET_GO_BYTES:
            let_go(self._file.fileno(), self._read)
            self._gone = self._read
        return found


def let_go(file: int, until: int) -> bool:
    """Give the space of a file's first bytes back; its size stays, and they read as zeros.

    Whether that was done: some systems and file systems cannot.
    """
    punch = getattr(ctypes.CDLL(None), "fallocate", None)
    if punch is None:
        return False
    punch.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return bool(punch(file, _KEEP_SIZE_PUNCH_HOLE, 0, until) == 0)


class Following:
    """A trace read while its job writes it. What was read is let go, so disks do not fill.

    Parameters
    ----------
    folder
        The trace.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: dict[Path, tuple[Row, ...]] = {}
        self._notes: list[str] = []

    def windows(self, ended: Callable[[], bool]) -> Iterator[Window]:
        """The windows of the job, each when all its ranks have begun the next step.

        `ended` tells whether the job has ended. Raises InputError if a file is no trace.
        """
        streams: list[tuple[int, Iterator[Row]]] = []
        world = 1
        while len(streams) < world:
            over = ended()
            # Each process of the job writes one file, from its first step on.
            for path in sorted(self._folder.glob(f"*{SUFFIX}")):
                if path not in self._last and path.stat().st_size:
                    first, rows = _of_training(self._rows_of(path, ended))
                    if first is None:
                        continue
                    streams.append((first.rank, rows))
                    world = max(world, int(str(first.context.get("world", 1))))
            if over:
                break
            time.sleep(_POLL_SECONDS)
        in_order = sorted(streams, key=lambda stream: stream[0])
        yield from windows_of(rows for _, rows in in_order)

    def trace(self) -> Trace:
        """How the job ended, once all windows were read: of each process the last row.

        Raises InputError as of :func:`~tapml.invariants.trace.read_trace`.
        """
        others = set(self._folder.glob(f"*{SUFFIX}")) - self._last.keys()
        files = self._last | {path: tuple(rows_of(path, self._notes))[-1:] for path in others}
        return trace_of(self._folder, sorted(files.items()), self._notes)

    def _rows_of(self, path: Path, ended: Callable[[], bool]) -> Iterator[Row]:
        self._last[path] = ()
        file = pa.PythonFile(_Growing(path, ended), mode="r")
        for row in rows_of(path, self._notes, file):
            self._last[path] = (row,)
            yield row


def _of_training(rows: Iterator[Row]) -> tuple[Row | None, Iterator[Row]]:
    """The first row of training, when a process knows its rank and its job, and all rows.

    None if the process was killed before it wrote a row.
    """
    before: list[Row] = []
    for row in rows:
        before.append(row)
        if row.step > BEFORE_TRAINING:
            break
    return (before[-1] if before else None), chain(before, rows)
