"""Passes the executor's runs to the storing process.

Nothing is copied: the runs' memory is shared, and is not reused before it is stored. The amount of
pending data is limited (``WAITING_BYTES``); at the limit, runs wait for the disk.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tapml.carving.storing_client import StoringProcess
from tapml.carving.versions import WHOLE, StateComparer
from tapml.execute.arrays import Array, Bytes, flat_bytes
from tapml.execute.memory import HostMemory
from tapml.execute.program import Program
from tapml.execute.segments import Segment, padded
from tapml.execute.state import StateCell
from tapml.suite.layout import KeptRun
from tapml.suite.permutation import Permutation
from tapml.suite.selection import Selector
from tapml_targets.errors import TapmlError

WAITING_BYTES: Final = 12 << 20
# Runs of a prompt are sent together at this size or number.
BATCH_BYTES: Final = 4 << 20
BATCH_RUNS: Final = 16
# Largest payload of a message; more goes through shared memory, which never blocks the sender.
INLINE_BYTES: Final = 4 << 10
_POLL_SECONDS: Final = 0.0005


@dataclass(frozen=True)
class _Handed:
    """Memory that must not be reused before the storing process has handled `number` messages."""

    number: int
    memories: list[Bytes]
    nbytes: int


class Recorder:
    """A :class:`tapml.execute.executor.RunSink` that stores runs.

    Parameters
    ----------
    process
        Stores them; has an open carve.
    selector
        Selects the tests to keep.
    weights
        The model's weights, stored if a kept call site reads them.

    Attributes
    ----------
    runs, tests
        Numbers of kept runs and call sites.
    """

    def __init__(self, process: StoringProcess, selector: Selector, weights: WeightDigests) -> None:
        self.runs = 0
        self.tests = 0
        self._process = process
        self._selector = selector
        self._weights = weights
        self._layouts: dict[KeptRun, int] = {}
        self._orders: dict[Permutation, int] = {}
        self._stored_weights: set[str] = set()
        self._comparer = StateComparer()
        self._parts: dict[tuple[object, ...], list[Any]] = {}
        self._series: dict[tuple[tuple[str, int], ...], int] = {}
        self._sent = 0
        self._handed: deque[_Handed] = deque()
        self._waiting_bytes = 0
        self._prompt = -1
        self._step = 0
        self._kept: KeptRun | None = None
        self._segments: list[tuple[int, Bytes]] = []
        self._batch: list[tuple[Any, ...]] = []
        self._batch_memories: list[Bytes] = []
        self._batch_bytes = 0
        self._settled_bytes = 0
        self._since_settled_bytes = 0

    def memory(self, segment: Segment) -> HostMemory | None:
        """The memory of a segment of the current run: shared if the segment is stored.

        State keeps its memory; its changes are found here.
        """
        kept = self._kept
        return self._process.memory if kept and segment.index in kept.segments else None

    @property
    def stored_bytes(self) -> int:
        """Bytes of tensors stored or pending, excluding weights."""
        return self._process.stored_bytes + self._waiting_bytes + self._batch_bytes

    def prompt(self, tokens: tuple[int, ...], text: str | None) -> None:
        """Start a prompt: the following runs are its steps from 0."""
        # Batches end with a prompt, so that a prompt's chunks do not depend on its position.
        self._hand_over()
        self._prompt += 1
        self._step = 0
        self._process.post("prompt", self._prompt, tokens, text)

    def begin(self, program: Program) -> None:
        """Select what to keep of a run.

        The budget is compared with an upper bound on the stored bytes, which is independent of the
        storing process's progress, so that the same carve keeps the same tests. If the run might
        not fit, wait until everything is stored and use the exact count.
        """
        if not self._selector.fits(program, self._step, self._most_bytes):
            self._settle()
        self._kept = self._selector.choose(program, self._step, self._most_bytes)

    def segment(self, segment: Segment, memory: Bytes) -> None:
        """Record a segment of the run."""
        if self._kept is not None:
            kept = self._kept.segments.get(segment.index)
            if kept is not None:
                self._segments.append((kept.index, memory))

    def end(self, before: Mapping[str, StateCell], after: Mapping[str, StateCell]) -> None:
        """Record the state before and after the run."""
        kept, step = self._kept, self._step
        self._step += 1
        if kept is None:
            return
        layout = self._layouts.get(kept)
        if layout is None:
            layout = self._send_layout(kept)
        window = self._process.window
        self._segments.sort(key=lambda item: item[0])
        self._batch.append(
            (
                self.runs,
                self._prompt,
                step,
                layout,
                [window(memory) for _, memory in self._segments],
                self._state(before, kept.before, follows=False),
                self._state(after, kept.after, follows=True),
            )
        )
        self._batch_memories += [memory for _, memory in self._segments]
        self._segments.clear()
        self._batch_bytes += kept.segment_bytes
        self._since_settled_bytes += kept.nbytes
        self.runs += 1
        self.tests += len(kept.layout.calls)
        if self._batch_bytes >= BATCH_BYTES or len(self._batch) >= BATCH_RUNS:
            self._hand_over()

    def finish(self) -> None:
        """Wait until all pending data is stored.

        Raises
        ------
        SetupError
            If the disk is full, or the storing process ended.
        """
        self._hand_over()
        self._weights.learn(self._process.finish())

    @property
    def _most_bytes(self) -> int:
        """Upper bound on the stored bytes, excluding weights."""
        return self._settled_bytes + self._since_settled_bytes

    def _settle(self) -> None:
        """Wait until everything is stored, and count it."""
        self._hand_over()
        self._wait(0)
        self._settled_bytes, self._since_settled_bytes = self._process.stored_bytes, 0

    def _state(
        self, cells: Mapping[str, StateCell], names: tuple[str, ...], *, follows: bool
    ) -> list[tuple[Any, ...]]:
        """State as a message: per piece its series, its change, and the place of its content."""
        if not names:
            return []
        # The usual case: all state is in one memory.
        memory = cells[names[0]].memory
        offsets = tuple(
            [
                cell.byte_offset if cell.memory is memory else -1
                for cell in map(cells.__getitem__, names)
            ]
        )
        parts = self._parts.get((names, offsets))
        if parts is not None and memory is not None:
            return [self._piece(memory, *part, follows=follows) for part in parts]
        pieces = [
            (owner, first, end, self._series_of(end - first, inside))
            for owner, first, end, inside in _pieces(cells, names)
        ]
        if -1 not in offsets:
            self._parts[names, offsets] = [part for _, *part in pieces]
        return [self._piece(*piece, follows=follows) for piece in pieces]

    def _piece(
        self, memory: Bytes, first: int, end: int, series: int, *, follows: bool
    ) -> tuple[Any, ...]:
        basis, count, content = self._comparer.change(series, memory, first, end, follows=follows)
        if basis == WHOLE:
            return series, basis, count, self._shared(memory[first:end])
        if len(content) > INLINE_BYTES:
            return series, basis, count, self._shared(np.frombuffer(content, np.uint8))
        return series, basis, count, content

    def _shared(self, content: Bytes) -> tuple[int, int, int]:
        """Copy bytes to shared memory, which is held until they are stored."""
        # Powers of two, so that a few blocks can be reused.
        size = 1 << max(12, (len(content) - 1).bit_length())
        copy = self._process.memory.acquire(("content", size), size, dense=True)[: len(content)]
        np.copyto(copy, content)
        self._batch_memories.append(copy)
        return self._process.window(copy)

    def _series_of(self, nbytes: int, names: dict[str, int]) -> int:
        """The storing process's number for these states."""
        key = tuple(names.items())
        number = self._series.get(key)
        if number is None:
            number = len(self._series)
            self._series[key] = number
            self._process.post("series", nbytes, names)
        return number

    def _hand_over(self) -> None:
        if self._batch:
            self._process.send("runs", self._batch)
            self._hold(self._batch_memories, self._batch_bytes)
            self._batch, self._batch_memories, self._batch_bytes = [], [], 0
        self._wait(WAITING_BYTES)

    def _hold(self, memories: list[Bytes], nbytes: int) -> None:
        self._sent += 1
        self._handed.append(_Handed(self._sent, memories, nbytes))
        self._waiting_bytes += nbytes

    def _wait(self, most: int) -> None:
        """Release stored memory, and wait until at most `most` bytes are pending."""
        while True:
            done = self._process.done
            while self._handed and self._handed[0].number <= done:
                self._waiting_bytes -= self._handed.popleft().nbytes
            if self._process.failed or not (self._process.alive or self._handed):
                self._process.finish()
            if self._waiting_bytes <= most:
                return
            if not self._process.alive:
                self._process.finish()
            time.sleep(_POLL_SECONDS)

    def _send_layout(self, kept: KeptRun) -> int:
        for name in kept.weights:
            if name not in self._stored_weights:
                self._stored_weights.add(name)
                known = self._weights.known(name)
                self._send_bytes("weight", name, flat_bytes(self._weights[name]), known)
        for order in kept.orders:
            if order not in self._orders:
                self._orders[order] = len(self._orders)
                indices = flat_bytes(order.indices)
                self._send_bytes("order", self._orders[order], order.itemsize, indices)
        number = len(self._layouts)
        self._layouts[kept] = number
        layout = kept.layout
        self._process.post(
            "layout",
            (
                number,
                layout.entry,
                json.dumps(dict(layout.symbols)),
                [self._orders[order] for order in kept.orders],
                layout.pack(),
            ),
            [(s.index, s.pieces, s.nbytes, s.tracked) for s in kept.segments.values()],
        )
        return number

    def _send_bytes(self, kind: str, *content: Any) -> None:
        """Send a message whose byte arrays are in shared memory."""
        copies = [self._process.share(part) for part in content if isinstance(part, np.ndarray)]
        shared = iter(copies)
        self._process.send(
            kind,
            *(
                self._process.window(next(shared)) if isinstance(part, np.ndarray) else part
                for part in content
            ),
        )
        self._hold(copies, sum(len(copy) for copy in copies))
        self._wait(WAITING_BYTES)


def _pieces(
    cells: Mapping[str, StateCell], names: tuple[str, ...]
) -> Iterator[tuple[Bytes, int, int, dict[str, int]]]:
    """Contiguous state: memory, first byte, end, and the first byte of each state inside."""
    memory: Bytes | None = None
    first = end = 0
    offsets: dict[str, int] = {}
    for name in names:
        cell = cells[name]
        if cell.array is None or cell.memory is None:
            raise TapmlError(f"state {name} is not on the host, so it cannot be carved")
        if memory is not None and (cell.memory is not memory or cell.byte_offset != end):
            yield memory, first, end, offsets
            memory = None
        if memory is None:
            memory, first, offsets = cell.memory, cell.byte_offset, {}
        offsets[name] = cell.byte_offset - first
        end = cell.byte_offset + padded(cell.array.nbytes)
    if memory is not None:
        yield memory, first, end, offsets


_KNOWN: Final[dict[str, dict[str, tuple[bytes, ...]]]] = {}
# Number of models whose digests are cached; a process rarely carves more than one.
_MODELS_KEPT: Final = 4


class WeightDigests:
    """Weights, and the cached digests of their chunks.

    `weights_hash` identifies all weights together and is the cache key; `weights` are contiguous
    arrays by name.
    """

    def __init__(self, weights_hash: str, weights: Mapping[str, Array]) -> None:
        if weights_hash not in _KNOWN and len(_KNOWN) >= _MODELS_KEPT:
            _KNOWN.pop(next(iter(_KNOWN)))
        self._digests = _KNOWN.setdefault(weights_hash, {})
        self._weights = weights

    def __getitem__(self, name: str) -> Array:
        """A weight."""
        return self._weights[name]

    def known(self, name: str) -> tuple[bytes, ...]:
        """The digests of a weight's chunks; empty if not computed yet."""
        return self._digests.get(name, ())

    def learn(self, digests: Mapping[str, Sequence[bytes]]) -> None:
        """Cache digests of stored weights."""
        self._digests.update({name: tuple(found) for name, found in digests.items()})
