"""Takes runs from the executor and hands them to the storing process.

Nothing is copied: the runs' memory is shared, and is not used again before it is stored. What waits
is bounded (``WAITING_BYTES``); when the bound is reached the run waits for the disk.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tapml.carving.layout import KeptRun
from tapml.carving.movement import Order
from tapml.carving.selection import Selector
from tapml.carving.state_changes import WHOLE, StateComparer
from tapml.carving.storing_client import StoringProcess
from tapml.carving.weights import WeightDigests
from tapml.execute.arrays import Bytes, flat_bytes
from tapml.execute.memory import HostMemory
from tapml.execute.program import Program
from tapml.execute.segments import Segment, padded
from tapml.execute.state import StateCell
from tapml_targets.errors import TapmlError

WAITING_BYTES: Final = 12 << 20
# Runs of a prompt are handed over together once they hold this much, or are this many.
BATCH_BYTES: Final = 4 << 20
BATCH_RUNS: Final = 16
# What travels in a message; more goes through shared memory, which never blocks the sender.
INLINE_BYTES: Final = 4 << 10
_POLL_SECONDS: Final = 0.0005


@dataclass(frozen=True)
class _Handed:
    """What must not be used again before the storing process has done `number` messages."""

    number: int
    memories: list[Bytes]
    nbytes: int


class Recorder:
    """A :class:`tapml.execute.executor.RunSink` that has runs stored.

    Parameters
    ----------
    process
        Stores them; a carve is open there.
    selector
        Decides what is kept.
    weights
        The model's weights, stored where a call site that is kept reads them.

    Attributes
    ----------
    runs, tests
        Numbers of runs and call sites kept.
    """

    def __init__(self, process: StoringProcess, selector: Selector, weights: WeightDigests) -> None:
        self.runs = 0
        self.tests = 0
        self._process = process
        self._selector = selector
        self._weights = weights
        self._layouts: dict[KeptRun, int] = {}
        self._orders: dict[Order, int] = {}
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
        """Where a segment of the run in hand lies: in shared memory where it is stored.

        State stays where it is; what changed of it is looked up here.
        """
        kept = self._kept
        return self._process.memory if kept and segment.index in kept.segments else None

    @property
    def stored_bytes(self) -> int:
        """Bytes of tensors stored or waiting, weights apart."""
        return self._process.stored_bytes + self._waiting_bytes + self._batch_bytes

    def prompt(self, tokens: tuple[int, ...], text: str | None) -> None:
        """The runs that follow are this prompt's, from step 0 on."""
        # Batches end with a prompt, so that the same prompt makes the same chunks wherever it is.
        self._hand_over()
        self._prompt += 1
        self._step = 0
        self._process.post("prompt", self._prompt, tokens, text)

    def begin(self, program: Program) -> None:
        """Decide what to keep of a run.

        A budget is held against the most that can have been stored, which does not depend on how
        far the other process is: the same carve keeps the same tests. Where that leaves no room
        for all of the run, what is stored is waited for and counted.
        """
        if not self._selector.fits(program, self._step, self._most_bytes):
            self._settle()
        self._kept = self._selector.choose(program, self._step, self._most_bytes)

    def segment(self, segment: Segment, memory: Bytes) -> None:
        """Take a segment of the run."""
        if self._kept is not None:
            kept = self._kept.segments.get(segment.index)
            if kept is not None:
                self._segments.append((kept.index, memory))

    def end(self, before: Mapping[str, StateCell], after: Mapping[str, StateCell]) -> None:
        """Take the state before and after the run."""
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
        """Have all that waits stored.

        Raises
        ------
        SetupError
            If the disk took no more, or the storing process ended.
        """
        self._hand_over()
        self._weights.learn(self._process.finish())

    @property
    def _most_bytes(self) -> int:
        """Bytes that are stored at most, weights apart."""
        return self._settled_bytes + self._since_settled_bytes

    def _settle(self) -> None:
        """Wait until everything is stored, and count it."""
        self._hand_over()
        self._wait(0)
        self._settled_bytes, self._since_settled_bytes = self._process.stored_bytes, 0

    def _state(
        self, cells: Mapping[str, StateCell], names: tuple[str, ...], *, follows: bool
    ) -> list[tuple[Any, ...]]:
        """State as a message: per piece its series, its change, and where it is whole."""
        if not names:
            return []
        # The usual case, every time the same: all state lies together in one memory.
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
        """Copy bytes to shared memory, held until they are stored."""
        # Sizes in powers of two: the same few blocks serve again and again.
        size = 1 << max(12, (len(content) - 1).bit_length())
        copy = self._process.memory.acquire(("content", size), size, dense=True)[: len(content)]
        np.copyto(copy, content)
        self._batch_memories.append(copy)
        return self._process.window(copy)

    def _series_of(self, nbytes: int, names: dict[str, int]) -> int:
        """The number under which the storing process knows these states."""
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
        """Let go of what is stored, and wait until at most so many bytes are not."""
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
        """Send a message in which arrays of bytes travel through shared memory."""
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
    """State that lies together: memory, first byte, end, and each one's first byte in between."""
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
