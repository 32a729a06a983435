"""A trace read while its job writes it, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow as pa

from tapml.invariants.record import BEFORE_TRAINING, Row, Window, windows_of
from tapml.invariants.trace import SUFFIX, rows_of

_POLL_SECONDS: Final = 0.05


class _Growing:
    """A file that another process writes; a read waits for its bytes until the job has ended."""

    def __init__(self, path: Path, ended: Callable[[], bool]) -> None:
        self._file = path.open("rb")
        self._ended = ended

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
            if not part:
                if over:
                    break
                time.sleep(_POLL_SECONDS)
        return found


def follow(folder: Path, ended: Callable[[], bool]) -> Iterator[Window]:
    """The windows of a job that is running, each when all its ranks have begun the next step.

    Parameters
    ----------
    folder
        Its trace.
    ended
        Tells whether the job has ended.

    Raises
    ------
    InputError
        If a file is no trace.
    """
    streams: dict[Path, tuple[int, Iterator[Row]]] = {}
    world = 1
    while len(streams) < world:
        over = ended()
        # Each process of the job writes one file, from its first step on.
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            if path not in streams and path.stat().st_size:
                file = pa.PythonFile(_Growing(path, ended), mode="r")
                first, rows = _of_training(rows_of(path, [], file))
                if first is None:
                    continue
                streams[path] = first.rank, rows
                world = max(world, int(str(first.context.get("world", 1))))
        if over:
            break
        time.sleep(_POLL_SECONDS)
    in_order = sorted(streams.values(), key=lambda stream: stream[0])
    yield from windows_of(rows for _, rows in in_order)


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
