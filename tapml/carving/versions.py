"""Stores memory as versions of its content in the previous run: large activations, and state.

Many activations are computed from the cache and change little between runs. Memories of consecutive
runs are contiguous, so the storing process compares many at once.

A model's cache is a large memory of which a run writes a few rows. They are found by comparison, so
no knowledge of operators is needed, and in the run's own process right after the run, while the
memory is in the processor's cache: transferring all of it would cost more than scanning it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from tapml.execute.arrays import Bytes, address
from tapml.suite.version_rows import INDEX_BYTES, MOST_CHANGED, WORD_BYTES, VersionRows

Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
Indices: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

# After this many bases in a row, an activation is no longer compared.
PATIENCE: Final = 3
# Bytes of activations kept for comparison with the next run's.
TRACKED_BYTES: Final = 64 << 20
ROW_BYTES: Final = 128
# Up to this many words, searching for rows costs more than it saves.
FEW_WORDS: Final = 2048


@dataclass
class _Series:
    """Versions of one memory: the last one, and what was stored since its base."""

    memory: Bytes
    token: int
    version: int
    base: int
    since_base: int = 0
    bases_in_a_row: int = 0


@dataclass(frozen=True)
class _Changed:
    """Rows of a memory that differ from the previous version."""

    rows: np.ndarray[Any, np.dtype[np.uint32]]
    data: Words
    row_bytes: int

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.data.nbytes


@dataclass
class SegmentVersions:
    """Stores versions of segments; not thread-safe."""

    rows: VersionRows
    _series: dict[Hashable, _Series] = field(default_factory=dict)
    _tracked: dict[Hashable, int] = field(default_factory=dict)
    _copies: dict[Hashable, Bytes] = field(default_factory=dict)

    def track(self, series: Hashable, nbytes: int) -> bool:
        """Whether to compare an activation with its version in the previous run."""
        last = self._series.get(series)
        if last is not None and last.bases_in_a_row >= PATIENCE:
            del self._series[series]
            self._copies.pop(series, None)
            self._tracked[series] = 0
        if series not in self._tracked:
            room = TRACKED_BYTES - sum(self._tracked.values())
            self._tracked[series] = nbytes if nbytes <= room else 0
        return self._tracked[series] > 0

    def store(self, series: Hashable, memories: Sequence[tuple[Bytes, int]]) -> list[int]:
        """Store consecutive versions, and return their ids.

        Parameters
        ----------
        series
            Key of the series.
        memories
            Each with a token; an equal token means equal content. Their length is a multiple of 64.
            The last one is copied, to be compared with the next.
        """
        last = self._series.get(series)
        token = None if last is None else last.token
        new: list[tuple[Bytes, int]] = []
        positions: list[int] = []
        for memory in memories:
            if memory[1] != token:
                new.append(memory)
                token = memory[1]
            positions.append(len(new))
        versions = [-1 if last is None else last.version]
        for stretch in _stretches(new):
            last = self._store_stretch(last, stretch, versions)
        if last is not None and new:
            last.memory = _copy(last.memory, self._copies, series)
            self._series[series] = last
        return [versions[position] for position in positions]

    def _store_stretch(
        self, last: _Series | None, stretch: _Stretch, versions: list[int]
    ) -> _Series:
        """Store contiguous memories; append their versions."""
        memories, words = stretch.memories, stretch.words
        if last is not None and len(last.memory) != len(memories[0][0]):
            last = None
        found, ends = _differences(None if last is None else last.memory, words)
        few = last is not None and int(np.diff(ends, prepend=0).max()) <= FEW_WORDS
        size = len(found) * (INDEX_BYTES + WORD_BYTES)
        if (
            last is not None
            and few
            and last.since_base + size <= MOST_CHANGED * len(memories[0][0])
        ):
            self._append_words(last, stretch, found, ends, versions)
            return last
        start = 0
        for index, (memory, token) in enumerate(memories):
            end = int(ends[index])
            changed = _rows_of(memory, found[start:end] - index * words.shape[1])
            last = self._store_one(last, memory, token, changed)
            versions.append(last.version)
            start = end
        if last is None:
            raise ValueError("a stretch holds at least one memory")
        return last

    def _append_words(
        self,
        last: _Series,
        stretch: _Stretch,
        found: Indices,
        ends: Indices,
        versions: list[int],
    ) -> None:
        """Store small changes of several memories at once."""
        words = stretch.words
        rows, data = self.rows.hold(
            (found % words.shape[1]).astype(np.uint32), words.reshape(-1).take(found)
        )
        start = 0
        for end in ends.tolist():
            if end > start:
                last.version = self.rows.add_rows(
                    last.base,
                    end - start,
                    WORD_BYTES,
                    rows + start * INDEX_BYTES,
                    data + start * WORD_BYTES,
                )
            versions.append(last.version)
            start = end
        last.since_base += len(found) * (INDEX_BYTES + WORD_BYTES)
        last.bases_in_a_row = 0
        last.memory, last.token = stretch.memories[-1]

    def _store_one(
        self, last: _Series | None, memory: Bytes, token: int, changed: _Changed | None
    ) -> _Series:
        if last is not None and changed is not None:
            since_base = last.since_base + changed.nbytes
            if since_base > MOST_CHANGED * memory.nbytes:
                changed = None
        if last is None or changed is None:
            found = np.flatnonzero(memory.view(np.uint64))
            changed = _rows_of(memory, found)
            bases = 1 if last is None else last.bases_in_a_row + 1
            last = self._base(memory, bases) if changed is None else self._zeros(memory)
        if changed is not None and len(changed.rows):
            last.since_base += changed.nbytes
            last.bases_in_a_row = 0
            places = self.rows.hold(changed.rows, changed.data)
            last.version = self.rows.add_rows(
                last.base, len(changed.rows), changed.row_bytes, *places
            )
        last.memory, last.token = memory, token
        return last

    def _zeros(self, memory: Bytes) -> _Series:
        version = self.rows.add_zeros(len(memory))
        return _Series(memory, -1, version, version)

    def _base(self, memory: Bytes, bases_in_a_row: int) -> _Series:
        version = self.rows.add_base(memory)
        return _Series(memory, -1, version, version, 0, bases_in_a_row)


@dataclass(frozen=True)
class _Stretch:
    """Contiguous memories of one size, and all of them as rows of words."""

    memories: Sequence[tuple[Bytes, int]]
    words: Words


def _stretches(memories: Sequence[tuple[Bytes, int]]) -> Iterator[_Stretch]:
    """Group contiguous memories."""
    group: list[tuple[Bytes, int]] = []
    end = 0
    for memory, token in memories:
        start = address(memory)
        if group and (
            start != end
            or len(memory) != len(group[0][0])
            or memory.base is None
            or memory.base is not group[0][0].base
        ):
            yield _stretch(group)
            group = []
        group.append((memory, token))
        end = start + len(memory)
    if group:
        yield _stretch(group)


def _stretch(group: list[tuple[Bytes, int]]) -> _Stretch:
    first = group[0][0]
    shape = (len(group), len(first) // WORD_BYTES)
    if len(group) == 1:
        return _Stretch(group, first.view(np.uint64).reshape(shape))
    base = first.base
    if not isinstance(base, np.ndarray):
        raise TypeError("contiguous memories must be views of one array")
    words: Words = np.ndarray(shape, np.uint64, base.data, address(first) - address(base))
    return _Stretch(group, words)


def _copy(memory: Bytes, copies: dict[Hashable, Bytes], series: Hashable) -> Bytes:
    """A copy of `memory` in the series' own memory."""
    own = copies.get(series)
    if own is None or len(own) != len(memory):
        own = np.empty(len(memory), np.uint8)
        copies[series] = own
    if own is not memory:
        np.copyto(own, memory)
    return own


def _differences(previous: Bytes | None, words: Words) -> tuple[Indices, Indices]:
    """Words that differ from the previous memory, counted over all, and each memory's end."""
    different = np.empty(words.shape, np.bool_)
    old = 0 if previous is None else previous.view(np.uint64)
    np.not_equal(words[0], old, out=different[0])
    if len(words) > 1:
        np.not_equal(words[1:], words[:-1], out=different[1:])
    found = np.flatnonzero(different)
    ends = np.searchsorted(found, np.arange(1, len(words) + 1) * words.shape[1])
    return found, ends


def _rows_of(memory: Bytes, words: Indices) -> _Changed | None:
    """Rows with the given words of 8 bytes, which are sorted; None if they are too many.

    A row is a word, or 128 bytes if a prompt fills much of a cache.
    """
    rows, row_bytes = words, WORD_BYTES
    if len(words) > FEW_WORDS and len(memory) % ROW_BYTES == 0:
        whole = words // (ROW_BYTES // WORD_BYTES)
        first = np.empty(len(whole), np.bool_)
        first[0] = True
        np.not_equal(whole[1:], whole[:-1], out=first[1:])
        whole = whole[first]
        if len(whole) * (INDEX_BYTES + ROW_BYTES) <= len(words) * (INDEX_BYTES + WORD_BYTES):
            rows, row_bytes = whole, ROW_BYTES
    if len(rows) * (INDEX_BYTES + row_bytes) > MOST_CHANGED * len(memory):
        return None
    data = memory.view(np.uint64)
    if row_bytes != WORD_BYTES:
        data = data.reshape(-1, row_bytes // WORD_BYTES)
    return _Changed(rows.astype(np.uint32), data.take(rows, axis=0), row_bytes)


SAME, SINCE_LAST, SINCE_ZEROS, WHOLE = range(4)
# Above this share of changed words, the complete memory is stored.
_MOST_WORDS: Final = 0.3

# Basis, number of words, and their indices (uint32) followed by their content (uint64).
Change: TypeAlias = tuple[int, int, bytes]


@dataclass
class StateComparer:
    """The run's side: compares each memory with the last one of its series."""

    _last: dict[int, Bytes] = field(default_factory=dict)

    def change(self, series: int, memory: Bytes, first: int, end: int, *, follows: bool) -> Change:
        """The difference between a window of `memory` and the last one of `series`.

        Parameters
        ----------
        series
            Key of the series.
        memory
            Must not be modified while it is held here; the same array means the same content.
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
class _StateSeries:
    memory: np.ndarray[Any, np.dtype[np.uint64]]
    version: int
    base: int
    since_base: int


@dataclass
class StateVersions:
    """The storing side: keeps each series' content and adds its versions."""

    rows: VersionRows
    _series: dict[int, _StateSeries] = field(default_factory=dict)

    def store(self, series: int, nbytes: int, change: tuple[int, int, Bytes]) -> int:
        """Store a change from :meth:`StateComparer.change`, and return the version.

        Parameters
        ----------
        series, nbytes
            Key and size of the series.
        change
            The change; for ``WHOLE`` with all of the memory as its content.
        """
        basis, count, content = change
        last = self._series.get(series)
        if basis == WHOLE:
            last = self._based(np.array(content).view(np.uint64))
        elif basis == SINCE_ZEROS:
            version = self.rows.add_zeros(nbytes)
            last = _StateSeries(np.zeros(nbytes // WORD_BYTES, np.uint64), version, version, 0)
        elif last is None:
            raise ValueError("the first version of a state must be complete")
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

    def _based(self, memory: np.ndarray[Any, np.dtype[np.uint64]]) -> _StateSeries:
        version = self.rows.add_base(memory.view(np.uint8))
        return _StateSeries(memory, version, version, 0)
