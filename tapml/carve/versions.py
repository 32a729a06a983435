"""Memory that changes little from run to run, as a base and the rows written since.

The cache of a model is the reason: every run writes a few of its rows. Which ones is found by
comparing, so no operator has to be understood, and large activations made from the cache (repeated
or transposed heads) gain as well. The first base is zeros: a short prompt fills a few rows of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tapml.carve.chunks import ChunkWriter
from tapml.carve.index import Rows, pack, unpack
from tapml.execute.arrays import Bytes
from tapml_targets.errors import InputError

# Above this share of changed words a new base is stored: finding the rows bought little.
MOST_CHANGED: Final = 0.25
# After so many bases in a row, an activation is taken for one that always changes.
PATIENCE: Final = 3
# Activations kept for comparison with the next run's; state is kept by the executor anyway.
TRACKED_BYTES: Final = 64 << 20
ROW_BYTES: Final = 128
# Rows up to this size lie in the index itself, more in chunks.
INLINE_BYTES: Final = 32 << 10
_WORD: Final = 8
_INDEX: Final = 4


@dataclass
class _Series:
    """Versions of one memory: the last one, and what was stored since its base."""

    memory: Bytes
    owner: Bytes
    version: int
    key: bytes
    base: int
    since_base: int = 0
    bases_in_a_row: int = 0


@dataclass(frozen=True)
class Changed:
    """Rows of a memory that differ from the version before."""

    rows: np.ndarray[Any, np.dtype[np.uint32]]
    data: np.ndarray[Any, np.dtype[np.uint64]]
    row_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes they take when stored."""
        return self.rows.nbytes + self.data.nbytes


@dataclass
class VersionWriter:
    """Stores versions; used by one thread. `row_bytes` counts what rows take in the index."""

    chunks: ChunkWriter
    rows: Rows
    row_bytes: int = 0
    _series: dict[Hashable, _Series] = field(default_factory=dict)
    _tracked: dict[Hashable, int] = field(default_factory=dict)
    _next: int = 0

    def track(self, series: Hashable, nbytes: int) -> bool:
        """Whether an activation is worth comparing with its version in the run before."""
        last = self._series.get(series)
        if last is not None and last.bases_in_a_row >= PATIENCE:
            del self._series[series]
            self._tracked[series] = 0
        if series not in self._tracked:
            room = TRACKED_BYTES - sum(self._tracked.values())
            self._tracked[series] = nbytes if nbytes <= room else 0
        return self._tracked[series] > 0

    def store(self, series: Hashable, memory: Bytes, owner: Bytes) -> int:
        """Store one version, and return its id.

        Parameters
        ----------
        series
            What the memory is a version of.
        memory
            Is compared with the next version, so it must stay as it is. Its length is a multiple
            of 64.
        owner
            The array that `memory` is a window on: the same owner means the same content.
        """
        last = self._series.get(series)
        if last is not None and last.owner is owner:
            return last.version
        changed = None
        if last is not None:
            changed = changed_rows(last.memory, memory)
            if changed is not None and last.since_base + changed.nbytes > memory.nbytes // 2:
                changed = None
        if last is None or changed is None:
            changed = changed_rows(None, memory)
            bases = 1 if last is None else last.bases_in_a_row + 1
            last = self._base(memory, bases) if changed is None else self._zeros(memory)
        if changed is not None:
            self._rows(last, changed)
        last.memory, last.owner = memory, owner
        self._series[series] = last
        return last.version

    def _zeros(self, memory: Bytes) -> _Series:
        """A base that takes no chunk."""
        version = self._take_id()
        key = hashlib.sha256(f"{memory.nbytes} zeros".encode()).digest()
        self.rows.versions.append((version, version, key, pack(memory.nbytes)))
        return _Series(memory, memory, version, key, version)

    def _base(self, memory: Bytes, bases_in_a_row: int) -> _Series:
        ids, key = self.chunks.add_all(memory)
        version = self._take_id()
        self.rows.versions.append((version, version, key, pack(ids)))
        return _Series(memory, memory, version, key, version, 0, bases_in_a_row)

    def _rows(self, last: _Series, changed: Changed) -> None:
        last.bases_in_a_row = 0
        if len(changed.rows) == 0:
            return
        data = changed.rows.tobytes() + changed.data.tobytes()
        last.version = self._take_id()
        last.key = hashlib.sha256(last.key + data).digest()
        last.since_base += len(data)
        stored: bytes | list[int] = data
        if len(data) > INLINE_BYTES:
            stored, _ = self.chunks.add_all(np.frombuffer(data, np.uint8))
        else:
            self.row_bytes += len(data)
        self.rows.versions.append(
            (
                last.version,
                last.base,
                last.key,
                pack((len(changed.rows), changed.row_bytes, stored)),
            )
        )

    def _take_id(self) -> int:
        self._next += 1
        return self._next


def changed_rows(before: Bytes | None, after: Bytes) -> Changed | None:
    """Rows in which two memories differ, `before` zeros where it is None; None if too many do.

    A row has 128 bytes, the row of a small cache's head. Where single words differ in many rows, as
    in a transposed cache, a row is a word of 8 bytes.
    """
    if before is not None and len(before) != len(after):
        return None
    new = after.view(np.uint64)
    words = np.flatnonzero(new if before is None else new != before.view(np.uint64))
    if len(words) > MOST_CHANGED * len(new):
        return None
    rows, row_bytes = words, _WORD
    if len(after) % ROW_BYTES == 0:
        whole = words // (ROW_BYTES // _WORD)
        # `words` is sorted, so equal rows lie together; np.unique would sort once more.
        whole = whole[np.flatnonzero(np.diff(whole, prepend=-1))]
        if len(whole) * (_INDEX + ROW_BYTES) <= len(words) * (_INDEX + _WORD):
            rows, row_bytes = whole, ROW_BYTES
    data = new.reshape(-1, row_bytes // _WORD)[rows]
    return Changed(rows.astype(np.uint32), data, row_bytes)


def read_version(blobs: Sequence[bytes], read: Callable[[tuple[int, ...]], Bytes]) -> Bytes:
    """A version's bytes from what the index holds of it.

    Parameters
    ----------
    blobs
        Its base, then the rows written since, in order.
    read
        Reads chunks by their ids.
    """
    base = unpack(blobs[0])
    if isinstance(base, int):
        if not 0 <= base < 1 << 48:
            raise InputError("the suite's index is damaged (size of a state); carve again")
        memory: Bytes = np.zeros(base, np.uint8)
    else:
        memory = read(base)
        if len(blobs) > 1:
            memory = np.array(memory)
    for blob in blobs[1:]:
        _apply(memory, blob, read)
    return memory


def _apply(memory: Bytes, blob: bytes, read: Callable[[tuple[int, ...]], Bytes]) -> None:
    try:
        count, row_bytes, stored = unpack(blob)
        data = stored if isinstance(stored, bytes) else read(stored)
        rows = np.frombuffer(data, np.uint32, count)
        values = np.frombuffer(data, np.uint8, offset=_INDEX * count).reshape(count, row_bytes)
        memory.reshape(-1, row_bytes)[rows] = values
    except (TypeError, ValueError, IndexError) as error:
        raise InputError(
            f"the suite's index is damaged (rows of a state: {error}); carve again"
        ) from error
