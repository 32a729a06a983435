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

# Rows since the base may take this share of it; then a new base is stored.
MOST_CHANGED: Final = 0.6
# After so many bases in a row, an activation is taken for one that always changes.
PATIENCE: Final = 3
# Activations kept for comparison with the next run's; state is kept by the executor anyway.
TRACKED_BYTES: Final = 64 << 20
ROW_BYTES: Final = 128
# Up to so many words, looking for whole rows costs more than it saves.
FEW_WORDS: Final = 2048
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

    def store(self, series: Hashable, memories: Sequence[tuple[Bytes, Bytes]]) -> list[int]:
        """Store versions that followed each other, and return their ids.

        Parameters
        ----------
        series
            What they are versions of.
        memories
            Each with its owner, the array it is a window on: the same owner as before means the
            same content. A memory is compared with the next one, so it must stay as it is; its
            length is a multiple of 64.
        """
        last = self._series.get(series)
        previous, owner = (None, None) if last is None else (last.memory, last.owner)
        new: list[Bytes] = []
        for memory, memory_owner in memories:
            if memory_owner is not owner:
                new.append(memory)
                owner = memory_owner
        changes = iter(_changes(previous, new))
        versions: list[int] = []
        for memory, memory_owner in memories:
            if last is None or last.owner is not memory_owner:
                last = self._store(last, memory, memory_owner, next(changes))
            versions.append(last.version)
        if last is not None:
            self._series[series] = last
        return versions

    def _store(
        self, last: _Series | None, memory: Bytes, owner: Bytes, changed: Changed | None
    ) -> _Series:
        if last is not None and changed is not None:
            since_base = last.since_base + changed.nbytes
            if since_base > MOST_CHANGED * memory.nbytes:
                changed = None
        if last is None or changed is None:
            (changed,) = _changes(None, [memory])
            bases = 1 if last is None else last.bases_in_a_row + 1
            last = self._base(memory, bases) if changed is None else self._zeros(memory)
        if changed is not None:
            self._rows(last, changed)
        last.memory, last.owner = memory, owner
        return last

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


def _changes(previous: Bytes | None, memories: Sequence[Bytes]) -> list[Changed | None]:
    """Rows in which each memory differs from the one before it, zeros where there is none.

    None where so much differs that a new base is better.
    """
    if not memories:
        return []
    words = len(memories[0]) // _WORD
    different = np.empty((len(memories), words), np.bool_)
    for index, memory in enumerate(memories):
        new = memory.view(np.uint64)
        old = 0 if previous is None else previous.view(np.uint64)
        np.not_equal(new, old, out=different[index])
        previous = memory
    found = np.flatnonzero(different)
    ends = np.searchsorted(found, np.arange(1, len(memories) + 1) * words)
    changes: list[Changed | None] = []
    start = 0
    for index, (memory, end) in enumerate(zip(memories, ends, strict=True)):
        changes.append(_rows_of(memory, found[start:end] - index * words))
        start = end
    return changes


def _rows_of(memory: Bytes, words: np.ndarray[Any, np.dtype[np.int64]]) -> Changed | None:
    """Rows that hold the given words of 8 bytes, which are in order.

    A row is a word, or 128 bytes where a prompt fills much of a cache.
    """
    rows, row_bytes = words, _WORD
    if len(words) > FEW_WORDS and len(memory) % ROW_BYTES == 0:
        whole = words >> 4
        first = np.empty(len(whole), np.bool_)
        first[0] = True
        np.not_equal(whole[1:], whole[:-1], out=first[1:])
        whole = whole[first]
        if len(whole) * (_INDEX + ROW_BYTES) <= len(words) * (_INDEX + _WORD):
            rows, row_bytes = whole, ROW_BYTES
    if len(rows) * (_INDEX + row_bytes) > MOST_CHANGED * len(memory):
        return None
    data = memory.view(np.uint64)
    if row_bytes != _WORD:
        data = data.reshape(-1, row_bytes // _WORD)
    return Changed(rows.astype(np.uint32), data.take(rows, axis=0), row_bytes)


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
