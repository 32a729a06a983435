"""Takes runs from the executor and stores them, hashing and writing in a thread of its own.

The run's thread only hands references over: memory of a run is never written again, so nothing is
copied. What waits to be stored is bounded (``WAITING_BYTES``); when the bound is reached the run
waits for the disk.
"""

from __future__ import annotations

import json
import queue
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tapml.carve.chunks import ChunkWriter
from tapml.carve.index import Rows, insert, pack
from tapml.carve.layout import KeptRun, KeptSegment
from tapml.carve.selection import Selector
from tapml.carve.versions import VersionWriter
from tapml.carve.weights import WeightDigests
from tapml.execute.arrays import Bytes
from tapml.execute.program import Program
from tapml.execute.segments import Segment, padded
from tapml.execute.state import StateCell
from tapml_targets.errors import SetupError, TapmlError

WAITING_BYTES: Final = 64 << 20
# A run hands its memory over at its end, a large one as it goes.
HANDOVER_BYTES: Final = 8 << 20
# How much a killed carve loses at most.
COMMIT_SECONDS: Final = 1.0


@dataclass(frozen=True)
class _Segments:
    """Segments of the run in hand."""

    items: tuple[tuple[KeptSegment, Bytes], ...]
    nbytes: int


@dataclass(frozen=True)
class _RunEnd:
    """Everything of a run is handed over."""

    run: int
    prompt: int
    step: int
    kept: KeptRun
    before: tuple[tuple[str, StateCell], ...]
    after: tuple[tuple[str, StateCell], ...]
    nbytes: int


@dataclass(frozen=True)
class _Prompt:
    id: int
    tokens: tuple[int, ...]
    text: str | None


class Recorder:
    """A :class:`tapml.execute.executor.RunSink` that stores runs.

    Use as a context manager: on leaving, the thread has ended, and unless :meth:`finish` was
    called nothing is durable.

    Parameters
    ----------
    folder
        Holds the packs.
    connection
        The suite's index; used by the recorder alone until it has finished.
    selector
        Decides what is kept.
    weights
        The model's weights, stored where a call site that is kept reads them.
    """

    def __init__(
        self,
        folder: Path,
        connection: sqlite3.Connection,
        selector: Selector,
        weights: WeightDigests,
    ) -> None:
        self.selector = selector
        self.runs = 0
        self.tests = 0
        self.weight_bytes = 0
        self._weights = weights
        self._connection = connection
        self._chunks = ChunkWriter(folder)
        self._rows = Rows()
        self._versions = VersionWriter(self._chunks, self._rows)
        self._layouts: dict[KeptRun, int] = {}
        self._stored_weights: set[str] = set()
        self._queue: queue.SimpleQueue[_Segments | _RunEnd | _Prompt | None] = queue.SimpleQueue()
        self._progressed = threading.Event()
        self._handed_over = 0
        self._done = 0
        self._error: BaseException | None = None
        self._abandoned = False
        self._prompt = -1
        self._step = 0
        self._kept: KeptRun | None = None
        self._items: list[tuple[KeptSegment, Bytes]] = []
        self._item_bytes = 0
        self._thread = threading.Thread(target=self._work, name="tapml-recorder", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._abandoned = True
        self._stop()
        self._chunks.abandon()

    @property
    def stored_bytes(self) -> int:
        """Bytes of tensors stored or waiting, weights apart."""
        waiting = self._handed_over - self._done
        return self._chunks.stored_bytes - self.weight_bytes + self._versions.row_bytes + waiting

    @property
    def offered_bytes(self) -> int:
        """Bytes handed to the store, repeated chunks included, weights apart."""
        return self._chunks.offered_bytes - self.weight_bytes

    def prompt(self, tokens: tuple[int, ...], text: str | None) -> None:
        """The runs that follow are this prompt's, from step 0 on."""
        self._prompt += 1
        self._step = 0
        self._queue.put(_Prompt(self._prompt, tokens, text))

    def begin(self, program: Program) -> None:
        """Decide what to keep of a run."""
        self._kept = self.selector.choose(program, self._step, self.stored_bytes)

    def segment(self, segment: Segment, memory: Bytes) -> None:
        """Take a segment of the run."""
        if self._kept is None:
            return
        kept = self._kept.segments.get(segment.index)
        if kept is None:
            return
        self._items.append((kept, memory))
        self._item_bytes += memory.nbytes
        if self._item_bytes >= HANDOVER_BYTES:
            self._hand_over_segments()

    def end(self, before: Mapping[str, StateCell], after: Mapping[str, StateCell]) -> None:
        """Take the state before and after the run."""
        kept, step = self._kept, self._step
        self._step += 1
        if kept is None:
            return
        self._hand_over_segments()
        states = tuple((name, after[name]) for name in kept.after)
        owners = {id(cell.memory): cell.memory for _, cell in states}
        nbytes = sum(memory.nbytes for memory in owners.values() if memory is not None)
        self._handed_over += nbytes
        self._queue.put(
            _RunEnd(
                self.runs,
                self._prompt,
                step,
                kept,
                tuple((name, before[name]) for name in kept.before),
                states,
                nbytes,
            )
        )
        self.runs += 1
        self.tests += len(kept.layout.calls)
        self._wait_for_room()

    def finish(self) -> None:
        """Store all that waits and make it durable.

        Raises
        ------
        SetupError
            If the disk took no more.
        """
        self._stop()
        self._raise_error()
        try:
            self._commit()
            self._chunks.finish()
        except (OSError, sqlite3.Error) as error:
            self._error = error
            self._raise_error()

    def _hand_over_segments(self) -> None:
        if self._items:
            self._handed_over += self._item_bytes
            self._queue.put(_Segments(tuple(self._items), self._item_bytes))
            self._items = []
            self._item_bytes = 0
            self._wait_for_room()

    def _wait_for_room(self) -> None:
        self._raise_error()
        while self._handed_over - self._done > WAITING_BYTES and self._error is None:
            self._progressed.clear()
            if self._handed_over - self._done > WAITING_BYTES:
                self._progressed.wait(1.0)
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise SetupError(
                f"the suite cannot be written ({self._error}): "
                "free some space, carve to another disk, or set a smaller --budget"
            ) from self._error

    def _stop(self) -> None:
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _work(self) -> None:
        """The thread: stores what comes until it is told to stop."""
        stored: dict[int, object] = {}
        committed = time.monotonic()
        while (item := self._queue.get()) is not None:
            if self._abandoned or self._error is not None:
                continue
            try:
                match item:
                    case _Segments(items, nbytes):
                        for kept, memory in items:
                            stored[kept.index] = self._store_segment(kept, memory)
                        self._done += nbytes
                    case _RunEnd():
                        self._store_run(item, stored)
                        stored = {}
                        self._done += item.nbytes
                    case _Prompt(identifier, tokens, text):
                        self._rows.prompts.append((identifier, json.dumps(tokens), text))
                if time.monotonic() - committed > COMMIT_SECONDS:
                    self._commit()
                    committed = time.monotonic()
            except (OSError, sqlite3.Error, MemoryError) as error:
                self._error = error
            self._progressed.set()

    def _store_segment(self, kept: KeptSegment, memory: Bytes) -> object:
        """Store a segment: the ids of its chunks, or the id of a version."""
        part = kept.take(memory)
        if kept.tracked and self._versions.track(kept, kept.nbytes):
            return self._versions.store(kept, part, part)
        return self._chunks.add_all(part)[0]

    def _store_run(self, end: _RunEnd, segments: Mapping[int, object]) -> None:
        layout = self._layouts.get(end.kept)
        if layout is None:
            layout = self._store_layout(end.kept)
        before = self._store_states(end.before)
        after = self._store_states(end.after)
        data = pack(([segments[index] for index in sorted(segments)], before, after))
        self._rows.runs.append((end.run, end.prompt, end.step, end.kept.layout.entry, layout, data))

    def _store_states(self, cells: tuple[tuple[str, StateCell], ...]) -> dict[str, tuple[int, int]]:
        """Store state; return for each the id of a version and its first byte there.

        State that lies together in memory is compared and stored as one.
        """
        places: dict[str, tuple[int, int]] = {}
        for owner, first, end, names in _state_pieces(cells):
            version = self._versions.store(tuple(names), owner[first:end], owner)
            places.update({name: (version, offset - first) for name, offset in names.items()})
        return places

    def _store_layout(self, kept: KeptRun) -> int:
        for name in kept.weights:
            if name not in self._stored_weights:
                before = self._chunks.stored_bytes
                ids, digest = self._weights.store(name, self._chunks)
                self._rows.weights.append((name, digest, pack(ids)))
                self._stored_weights.add(name)
                self.weight_bytes += self._chunks.stored_bytes - before
        layout = len(self._layouts)
        self._layouts[kept] = layout
        self._rows.layouts.append(
            (layout, kept.layout.entry, json.dumps(dict(kept.layout.symbols)), kept.layout.pack())
        )
        return layout

    def _commit(self) -> None:
        """Put the waiting rows into the index; their chunks are in the packs already."""
        self._rows.chunks += self._chunks.take_new()
        insert(self._connection, self._rows)
        self._rows.clear()


def _state_pieces(
    cells: tuple[tuple[str, StateCell], ...],
) -> Iterator[tuple[Bytes, int, int, dict[str, int]]]:
    """Memory, first byte, end, and the first byte of each state, for state that lies together."""
    owner: Bytes | None = None
    first = end = 0
    names: dict[str, int] = {}
    for name, cell in cells:
        if cell.array is None or cell.memory is None:
            raise TapmlError(f"state {name} is not on the host, so it cannot be carved")
        if owner is not None and (cell.memory is not owner or cell.byte_offset != end):
            yield owner, first, end, names
            owner = None
        if owner is None:
            owner, first, names = cell.memory, cell.byte_offset, {}
        names[name] = cell.byte_offset
        end = cell.byte_offset + padded(cell.array.nbytes)
    if owner is not None:
        yield owner, first, end, names
