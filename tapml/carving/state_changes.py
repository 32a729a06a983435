"""What changed in the state, as the run's process tells the storing process.

The cache of a model is a large memory of which a run writes a few rows. Which ones is found by
comparing, so no operator has to be understood, and right after the run, while the memory is in the
processor's cache: handing all of it to another process would cost more than looking through it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from tapml.carving.version_rows import INDEX_BYTES, MOST_CHANGED, WORD_BYTES, VersionRows
from tapml.execute.arrays import Bytes

SAME, SINCE_LAST, SINCE_ZEROS, WHOLE = range(4)
# Above this share of changed words, all of a memory is handed over.
_MOST_WORDS: Final = 0.3

# Basis, number of words, and their indices (uint32) and content (uint64) one after the other.
Change: TypeAlias = tuple[int, int, bytes]


@dataclass
class StateComparer:
    """The run's end: compares each memory with the last one of its series."""

    _last: dict[int, Bytes] = field(default_factory=dict)

    def change(self, series: int, memory: Bytes, first: int, end: int, *, follows: bool) -> Change:
        """How a window on `memory` differs from the last one of `series`.

        Parameters
        ----------
        series
            What the window is a version of.
        memory
            Never written again while it is held here; the same array means the same content.
        first, end
            The window, multiples of 64 bytes.
        follows
            Whether the memory was made from the last one; else it is more likely empty.
        """
        last = self._last.get(series)
        if last is memory:
            return SAME, 0, b""
        self._last[series] = memory
        new = memory[first:end].view(np.uint64)
        old = None if last is None else last[first:end].view(np.uint64)
        for basis in (SINCE_LAST, SINCE_ZEROS) if follows else (SINCE_ZEROS, SINCE_LAST):
            if basis == SINCE_LAST and old is None:
                continue
            words = np.flatnonzero(new != old if basis == SINCE_LAST else new)
            if len(words) <= _MOST_WORDS * len(new):
                content = words.astype(np.uint32).tobytes() + new.take(words).tobytes()
                return basis, len(words), content
        return WHOLE, 0, b""


@dataclass
class _Series:
    memory: np.ndarray[Any, np.dtype[np.uint64]]
    version: int
    base: int
    since_base: int


@dataclass
class StateVersions:
    """The storing end: keeps each series' content and adds its versions."""

    rows: VersionRows
    _series: dict[int, _Series] = field(default_factory=dict)

    def store(self, series: int, nbytes: int, change: tuple[int, int, Bytes]) -> int:
        """Store what :meth:`StateComparer.change` said, and return the version.

        Parameters
        ----------
        series, nbytes
            What it is a version of, and its size.
        change
            The change; for ``WHOLE`` with all of the memory as its content.
        """
        basis, count, content = change
        last = self._series.get(series)
        if basis == WHOLE:
            last = self._based(np.array(content).view(np.uint64))
        elif basis == SINCE_ZEROS:
            version = self.rows.add_zeros(nbytes)
            last = _Series(np.zeros(nbytes // WORD_BYTES, np.uint64), version, version, 0)
        elif last is None:
            raise ValueError("the first version of a state has nothing to differ from")
        self._series[series] = last
        if count:
            words = np.array(content[: INDEX_BYTES * count]).view(np.uint32)
            data = np.array(content[INDEX_BYTES * count :]).view(np.uint64)
            last.memory[words] = data
            last.since_base += len(content)
            if last.since_base > MOST_CHANGED * nbytes:
                self._series[series] = last = self._based(last.memory)
            else:
                places = self.rows.hold(words, data)
                last.version = self.rows.add_rows(last.base, count, WORD_BYTES, *places)
        return last.version

    def _based(self, memory: np.ndarray[Any, np.dtype[np.uint64]]) -> _Series:
        version = self.rows.add_base(memory.view(np.uint8))
        return _Series(memory, version, version, 0)
