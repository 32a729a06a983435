"""Stores versions of a memory: a base, and the rows written since.

A base is chunks, or zeros, which take no space. Rows of many versions share a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from tapml.execute.arrays import Bytes
from tapml.suite.chunks import ChunkWriter
from tapml.suite.index import Rows, pack, unpack
from tapml_targets.errors import InputError

Indices: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]

# Largest share of the base that rows may take before a new base is stored.
MOST_CHANGED: Final = 0.6
# The smallest row; its index takes four bytes more.
WORD_BYTES: Final = 8
INDEX_BYTES: Final = 4


@dataclass(frozen=True)
class _Waiting:
    """A version whose rows are not in a chunk yet: their offsets among the pending bytes."""

    version: int
    base: int
    count: int
    row_bytes: int
    rows: int
    data: int


@dataclass
class VersionRows:
    """Adds versions to a suite; not thread-safe. :meth:`flush` stores pending rows."""

    chunks: ChunkWriter
    rows: Rows
    _waiting: list[_Waiting] = field(default_factory=list)
    _parts: list[Bytes] = field(default_factory=list)
    _parts_bytes: int = 0
    _next: int = 0

    def add_zeros(self, nbytes: int) -> int:
        """Add a base of zeros; returns its version."""
        version = self._take_id()
        self.rows.versions.append((version, version, pack(nbytes)))
        return version

    def add_base(self, memory: Bytes) -> int:
        """Add a base; returns its version."""
        ids, _ = self.chunks.add_all(memory)
        version = self._take_id()
        self.rows.versions.append((version, version, pack(ids)))
        return version

    def hold(self, rows: Indices, data: np.ndarray[Any, Any]) -> tuple[int, int]:
        """Queue indices and content of rows to be stored; returns their offsets."""
        start = self._parts_bytes
        self._parts += [rows.view(np.uint8).reshape(-1), data.view(np.uint8).reshape(-1)]
        self._parts_bytes = start + rows.nbytes + data.nbytes
        return start, start + rows.nbytes

    def add_rows(self, base: int, count: int, row_bytes: int, rows: int, data: int) -> int:
        """Add a version that differs from the last one on `base` in `count` queued rows."""
        version = self._take_id()
        self._waiting.append(_Waiting(version, base, count, row_bytes, rows, data))
        return version

    def flush(self) -> None:
        """Store the rows of all versions since the last call."""
        if not self._waiting:
            return
        ids, _ = self.chunks.add_all(np.concatenate(self._parts))
        for waiting in self._waiting:
            place = (waiting.count, waiting.row_bytes, waiting.rows, waiting.data, ids)
            self.rows.versions.append((waiting.version, waiting.base, pack(place)))
        self._waiting.clear()
        self._parts.clear()
        self._parts_bytes = 0

    def _take_id(self) -> int:
        self._next += 1
        return self._next


def read_version(blobs: Sequence[bytes], read: Callable[[tuple[int, ...]], Bytes]) -> Bytes:
    """Assemble a version's bytes.

    Parameters
    ----------
    blobs
        Index entries of its base and then of the rows written since, in order.
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
        count, row_bytes, rows_at, data_at, chunks = unpack(blob)
        stored = read(chunks)
        rows = np.frombuffer(stored.data, np.uint32, count, rows_at)
        values = np.frombuffer(stored.data, np.uint8, count * row_bytes, data_at)
        memory.reshape(-1, row_bytes)[rows] = values.reshape(count, row_bytes)
    except (TypeError, ValueError, IndexError) as error:
        raise InputError(
            f"the suite's index is damaged (rows of a state: {error}); carve again"
        ) from error
