"""Stores runs: new parts of their memory become chunks, the rest references."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from tapml.carving.versions import SegmentVersions, StateVersions
from tapml.execute.arrays import Bytes, address
from tapml.suite.chunks import CHUNK_BYTES, ChunkWriter, content_key, digest_of, split
from tapml.suite.index import Rows, insert, pack
from tapml.suite.layout import StoredSegment
from tapml.suite.version_rows import VersionRows

# A segment's first byte and its chunks, or a version.
SegmentPlace: TypeAlias = "tuple[int, list[int]] | int"


@dataclass(frozen=True, eq=False)
class StoredLayout:
    """A layout's row, the permutations of its moved values, its segments by index."""

    id: int
    entry: str
    symbols: str
    orders: tuple[int, ...]
    data: bytes
    segments: tuple[StoredSegment, ...]


@dataclass(frozen=True)
class StatePiece:
    """Contiguous state.

    Attributes
    ----------
    series
        The series it is a version of.
    nbytes
        Its size.
    names
        Each state's first byte.
    basis, count, content
        Its difference from the previous version, from
        :class:`~tapml.carving.versions.StateComparer`; for ``WHOLE``, all of its content.
    """

    series: int
    nbytes: int
    names: Mapping[str, int]
    basis: int
    count: int
    content: Bytes


@dataclass(frozen=True)
class StoredRun:
    """A run: its segments in the order of the layout's, its state before and after."""

    number: int
    prompt: int
    step: int
    layout: StoredLayout
    segments: tuple[Bytes, ...]
    before: tuple[StatePiece, ...]
    after: tuple[StatePiece, ...]


@dataclass
class RunStore:
    """Writes runs into chunks and rows; not thread-safe.

    Attributes
    ----------
    connection
        The suite's index.
    chunks
        Stores tensors.
    weight_digests
        Digests of the chunks of each stored weight, by name.
    shared_bytes
        Bytes of stored weights and permutations, which all runs share.
    """

    connection: sqlite3.Connection
    chunks: ChunkWriter
    rows: Rows = field(default_factory=Rows)
    weight_digests: dict[str, list[bytes]] = field(default_factory=dict)
    shared_bytes: int = 0

    def __post_init__(self) -> None:
        self._version_rows = VersionRows(self.chunks, self.rows)
        self._segment_versions = SegmentVersions(self._version_rows)
        self._state_versions = StateVersions(self._version_rows)

    @property
    def stored_bytes(self) -> int:
        """Bytes of stored tensors, excluding those that all runs share."""
        return self.chunks.stored_bytes - self.shared_bytes

    def prompt(self, number: int, tokens: Sequence[int], text: str | None) -> None:
        """Store a prompt."""
        self.rows.prompts.append((number, json.dumps(list(tokens)), text))

    def layout(self, layout: StoredLayout) -> None:
        """Store a layout, before the first run that uses it."""
        self.rows.layouts.append(
            (layout.id, layout.entry, layout.symbols, pack(layout.orders), layout.data)
        )

    def order(self, number: int, itemsize: int, indices: Bytes) -> None:
        """Store the permutation of values that hold another value's elements."""
        before = self.chunks.stored_bytes
        ids, digest = self.chunks.add_all(indices)
        self.shared_bytes += self.chunks.stored_bytes - before
        self.rows.orders.append((number, itemsize, digest, pack(ids)))

    def weight(self, name: str, memory: Bytes, digests: Sequence[bytes]) -> None:
        """Store a weight; `digests` are those of its chunks, if known."""
        before = self.chunks.stored_bytes
        found = list(digests) or [digest_of(part) for part in split(memory)]
        ids, _ = self.chunks.add_all(memory, found)
        self.weight_digests[name] = found
        self.shared_bytes += self.chunks.stored_bytes - before
        self.rows.weights.append((name, content_key(found), pack(ids)))

    def store(self, runs: Sequence[StoredRun]) -> None:
        """Store consecutive runs."""
        segments = self._segments(runs)
        states = [(self._state(run.before), self._state(run.after)) for run in runs]
        self._version_rows.flush()
        for run, places, (before, after) in zip(runs, segments, states, strict=True):
            self.rows.runs.append(
                (
                    run.number,
                    run.prompt,
                    run.step,
                    run.layout.entry,
                    run.layout.id,
                    pack((places, before, after)),
                )
            )

    def commit(self) -> None:
        """Add the pending rows to the index; their chunks are already in the packs."""
        self.rows.chunks += self.chunks.take_new()
        insert(self.connection, self.rows)
        self.rows.clear()

    def _segments(self, runs: Sequence[StoredRun]) -> list[list[SegmentPlace]]:
        """The places of each run's segments, in index order."""
        places: list[list[SegmentPlace]] = [[0] * len(run.segments) for run in runs]
        parts: dict[StoredSegment, list[tuple[int, Bytes]]] = {}
        for number, run in enumerate(runs):
            for segment, memory in zip(run.layout.segments, run.segments, strict=True):
                parts.setdefault(segment, []).append((number, segment.take(memory)))
        for segment, items in parts.items():
            if segment.tracked and self._segment_versions.track(segment, segment.nbytes):
                versions = self._segment_versions.store(
                    segment, [(part, runs[number].number) for number, part in items]
                )
                for (number, _), version in zip(items, versions, strict=True):
                    places[number][segment.index] = version
                continue
            for group in _groups(items):
                ids, _ = self.chunks.add_all(_together([part for _, part in group]))
                for position, (number, _) in enumerate(group):
                    places[number][segment.index] = (position * segment.nbytes, ids)
        return places

    def _state(self, pieces: Sequence[StatePiece]) -> dict[str, tuple[int, int]]:
        """Store state; return each name's version and first byte there."""
        places: dict[str, tuple[int, int]] = {}
        for piece in pieces:
            version = self._state_versions.store(
                piece.series, piece.nbytes, (piece.basis, piece.count, piece.content)
            )
            for name, offset in piece.names.items():
                places[name] = (version, offset)
        return places


def _groups(parts: list[tuple[int, Bytes]]) -> Iterator[list[tuple[int, Bytes]]]:
    """Group parts that fit into one chunk; a larger part forms its own group."""
    room = max(1, CHUNK_BYTES // max(1, len(parts[0][1])))
    for start in range(0, len(parts), room):
        yield parts[start : start + room]


def _together(parts: list[Bytes]) -> Bytes:
    """Parts of one size as one memory: a view if they are contiguous, else a copy."""
    if len(parts) == 1:
        return parts[0]
    base, size, first = parts[0].base, len(parts[0]), address(parts[0])
    if isinstance(base, np.ndarray) and all(
        part.base is base and address(part) == first + index * size
        for index, part in enumerate(parts)
    ):
        return np.ndarray(size * len(parts), np.uint8, base.data, first - address(base))
    return np.concatenate(parts)
