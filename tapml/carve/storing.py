"""Stores runs: what of their memory is new goes to chunks, the rest becomes references.

Runs come in batches, because each call that gives the interpreter away (a comparison, a hash, a
write) costs the thread that runs the model a moment: few large ones disturb it less than many.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from tapml.carve.chunks import CHUNK_BYTES, ChunkWriter
from tapml.carve.index import Rows, insert, pack
from tapml.carve.layout import KeptRun, KeptSegment
from tapml.carve.versions import VersionWriter
from tapml.carve.weights import WeightDigests
from tapml.execute.arrays import Bytes, address
from tapml.execute.segments import padded
from tapml.execute.state import StateCell
from tapml_targets.errors import TapmlError

StateCells: TypeAlias = tuple[tuple[str, StateCell], ...]
# A segment's first byte and the chunks it lies in, or a version.
SegmentPlace: TypeAlias = "tuple[int, list[int]] | int"


@dataclass(frozen=True)
class CapturedRun:
    """A run as the recorder hands it over; `before` and `after` hold state in the plan's order."""

    number: int
    prompt: int
    step: int
    kept: KeptRun
    segments: tuple[tuple[KeptSegment, Bytes], ...]
    before: StateCells
    after: StateCells


@dataclass
class RunStore:
    """Writes runs into chunks and rows; used by one thread.

    Attributes
    ----------
    connection
        The suite's index.
    chunks
        Where tensors go.
    weights
        Stored where a call site that is kept reads them.
    weight_bytes
        Bytes of weights stored.
    """

    connection: sqlite3.Connection
    chunks: ChunkWriter
    weights: WeightDigests
    rows: Rows = field(default_factory=Rows)
    weight_bytes: int = 0

    def __post_init__(self) -> None:
        self.versions = VersionWriter(self.chunks, self.rows)
        self._layouts: dict[KeptRun, int] = {}
        self._stored_weights: set[str] = set()

    @property
    def stored_bytes(self) -> int:
        """Bytes of tensors stored, weights apart."""
        return self.chunks.stored_bytes - self.weight_bytes

    def prompt(self, number: int, tokens: Sequence[int], text: str | None) -> None:
        """Store a prompt."""
        self.rows.prompts.append((number, json.dumps(list(tokens)), text))

    def store(self, runs: Sequence[CapturedRun]) -> None:
        """Store runs that followed each other."""
        segments = self._segments(runs)
        before, after = self._states(runs)
        self.versions.flush()
        for run, places, earlier, later in zip(runs, segments, before, after, strict=True):
            layout = self._layouts.get(run.kept)
            if layout is None:
                layout = self._layout(run.kept)
            entry = run.kept.layout.entry
            data = pack((places, earlier, later))
            self.rows.runs.append((run.number, run.prompt, run.step, entry, layout, data))

    def commit(self) -> None:
        """Put the waiting rows into the index; their chunks are in the packs already."""
        self.rows.chunks += self.chunks.take_new()
        insert(self.connection, self.rows)
        self.rows.clear()

    def _segments(self, runs: Sequence[CapturedRun]) -> list[list[SegmentPlace]]:
        """Where each run's segments lie, in the order of their index."""
        places: list[list[SegmentPlace]] = [[0] * len(run.segments) for run in runs]
        parts: dict[KeptSegment, list[tuple[int, Bytes]]] = {}
        for number, run in enumerate(runs):
            for kept, memory in run.segments:
                parts.setdefault(kept, []).append((number, kept.take(memory)))
        for kept, items in parts.items():
            if kept.tracked and self.versions.track(kept, kept.nbytes):
                versions = self.versions.store(kept, [(part, part) for _, part in items])
                for (number, _), version in zip(items, versions, strict=True):
                    places[number][kept.index] = version
                continue
            for group in _groups(items):
                ids, _ = self.chunks.add_all(_together([part for _, part in group]))
                for position, (number, _) in enumerate(group):
                    places[number][kept.index] = (position * kept.nbytes, ids)
        return places

    def _states(
        self, runs: Sequence[CapturedRun]
    ) -> tuple[list[dict[str, tuple[int, int]]], list[dict[str, tuple[int, int]]]]:
        """Version and first byte there of each state, before and after each run.

        State that lies together in memory is compared and stored as one.
        """
        places: tuple[list[dict[str, tuple[int, int]]], ...] = (
            [{} for _ in runs],
            [{} for _ in runs],
        )
        series: dict[Hashable, list[tuple[dict[str, tuple[int, int]], _Piece]]] = {}
        for number, run in enumerate(runs):
            for found, cells in ((places[0][number], run.before), (places[1][number], run.after)):
                for piece in _pieces(cells):
                    series.setdefault(tuple(piece.names), []).append((found, piece))
        for key, items in series.items():
            versions = self.versions.store(
                key, [(p.owner[p.first : p.end], p.owner) for _, p in items]
            )
            for (found, piece), version in zip(items, versions, strict=True):
                for name, offset in piece.names.items():
                    found[name] = (version, offset - piece.first)
        return places[0], places[1]

    def _layout(self, kept: KeptRun) -> int:
        for name in kept.weights:
            if name not in self._stored_weights:
                before = self.chunks.stored_bytes
                ids, digest = self.weights.store(name, self.chunks)
                self.rows.weights.append((name, digest, pack(ids)))
                self._stored_weights.add(name)
                self.weight_bytes += self.chunks.stored_bytes - before
        layout = len(self._layouts)
        self._layouts[kept] = layout
        symbols = json.dumps(dict(kept.layout.symbols))
        self.rows.layouts.append((layout, kept.layout.entry, symbols, kept.layout.pack()))
        return layout


@dataclass(frozen=True)
class _Piece:
    """State that lies together: memory, first byte and end, and the first byte of each."""

    owner: Bytes
    first: int
    end: int
    names: dict[str, int]


def _pieces(cells: StateCells) -> Iterator[_Piece]:
    owner: Bytes | None = None
    first = end = 0
    names: dict[str, int] = {}
    for name, cell in cells:
        if cell.array is None or cell.memory is None:
            raise TapmlError(f"state {name} is not on the host, so it cannot be carved")
        if owner is not None and (cell.memory is not owner or cell.byte_offset != end):
            yield _Piece(owner, first, end, names)
            owner = None
        if owner is None:
            owner, first, names = cell.memory, cell.byte_offset, {}
        names[name] = cell.byte_offset
        end = cell.byte_offset + padded(cell.array.nbytes)
    if owner is not None:
        yield _Piece(owner, first, end, names)


def _groups(parts: list[tuple[int, Bytes]]) -> Iterator[list[tuple[int, Bytes]]]:
    """Cut a row of parts into groups that fit a chunk; a larger part is a group of its own."""
    room = max(1, CHUNK_BYTES // len(parts[0][1]))
    for start in range(0, len(parts), room):
        yield parts[start : start + room]


def _together(parts: list[Bytes]) -> Bytes:
    """Parts of one size as one memory: a window where they lie together, else a copy."""
    if len(parts) == 1:
        return parts[0]
    base, size, first = parts[0].base, len(parts[0]), address(parts[0])
    if isinstance(base, np.ndarray) and all(
        part.base is base and address(part) == first + index * size
        for index, part in enumerate(parts)
    ):
        return np.ndarray(size * len(parts), np.uint8, base.data, first - address(base))
    return np.concatenate(parts)
