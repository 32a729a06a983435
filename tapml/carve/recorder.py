"""Takes runs from the executor and has them stored in a thread of their own.

The run's thread only hands references over: memory of a run is never written again while somebody
holds it, so nothing is copied. What waits to be stored is bounded (``WAITING_BYTES``); when the
bound is reached the run waits for the disk.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias

from tapml.carve.chunks import ChunkWriter
from tapml.carve.layout import KeptRun, KeptSegment
from tapml.carve.selection import Selector
from tapml.carve.storing import CapturedRun, RunStore
from tapml.carve.weights import WeightDigests
from tapml.execute.arrays import Bytes
from tapml.execute.program import Program
from tapml.execute.segments import Segment
from tapml.execute.state import StateCell
from tapml_targets.errors import SetupError

WAITING_BYTES: Final = 32 << 20
# Runs of a prompt are handed over together once they hold this much.
BATCH_BYTES: Final = 8 << 20
# How much of the carve a kill loses at most, beside what waits.
COMMIT_SECONDS: Final = 1.0


@dataclass(frozen=True)
class _Batch:
    runs: tuple[CapturedRun, ...]
    nbytes: int


@dataclass(frozen=True)
class _Prompt:
    number: int
    tokens: tuple[int, ...]
    text: str | None


_Item: TypeAlias = "_Batch | _Prompt | None"


class Recorder:
    """A :class:`tapml.execute.executor.RunSink` that stores runs.

    Use as a context manager: on leaving, the thread has ended, and unless :meth:`finish` was
    called the index lacks what came last.

    Parameters
    ----------
    folder
        Holds the packs.
    connection
        The suite's index; used by the recorder alone until it has finished.
    selector
        Decides what is kept.
    weights
        The model's weights.

    Attributes
    ----------
    runs, tests
        Numbers of runs and call sites kept.
    """

    def __init__(
        self,
        folder: Path,
        connection: sqlite3.Connection,
        selector: Selector,
        weights: WeightDigests,
    ) -> None:
        self.runs = 0
        self.tests = 0
        self._selector = selector
        self._store = RunStore(connection, ChunkWriter(folder), weights)
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._progressed = threading.Event()
        self._handed_over = 0
        self._done = 0
        self._error: BaseException | None = None
        self._abandoned = False
        self._prompt = -1
        self._step = 0
        self._kept: KeptRun | None = None
        self._segments: list[tuple[KeptSegment, Bytes]] = []
        self._captured: list[CapturedRun] = []
        self._captured_bytes = 0
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
        self._store.chunks.close()

    @property
    def stored_bytes(self) -> int:
        """Bytes of tensors stored or waiting, weights apart."""
        waiting = self._handed_over - self._done + self._captured_bytes
        return self._store.stored_bytes + waiting

    def prompt(self, tokens: tuple[int, ...], text: str | None) -> None:
        """The runs that follow are this prompt's, from step 0 on."""
        # Batches end with a prompt, so that the same prompt makes the same chunks wherever it is.
        self._hand_over()
        self._prompt += 1
        self._step = 0
        self._queue.put(_Prompt(self._prompt, tokens, text))

    def begin(self, program: Program) -> None:
        """Decide what to keep of a run."""
        self._kept = self._selector.choose(program, self._step, self.stored_bytes)

    def segment(self, segment: Segment, memory: Bytes) -> None:
        """Take a segment of the run."""
        if self._kept is not None:
            kept = self._kept.segments.get(segment.index)
            if kept is not None:
                self._segments.append((kept, memory))

    def end(self, before: Mapping[str, StateCell], after: Mapping[str, StateCell]) -> None:
        """Take the state before and after the run."""
        kept, step = self._kept, self._step
        self._step += 1
        if kept is None:
            return
        self._captured.append(
            CapturedRun(
                number=self.runs,
                prompt=self._prompt,
                step=step,
                kept=kept,
                segments=tuple(self._segments),
                before=tuple([(name, before[name]) for name in kept.before]),
                after=tuple([(name, after[name]) for name in kept.after]),
            )
        )
        self._segments = []
        self._captured_bytes += kept.nbytes
        self.runs += 1
        self.tests += len(kept.layout.calls)
        if self._captured_bytes >= BATCH_BYTES:
            self._hand_over()

    def finish(self) -> None:
        """Store all that waits.

        Raises
        ------
        SetupError
            If the disk took no more.
        """
        self._hand_over()
        self._stop()
        self._raise_error()
        try:
            self._store.commit()
            self._store.chunks.close()
        except (OSError, sqlite3.Error) as error:
            self._error = error
            self._raise_error()

    def _hand_over(self) -> None:
        if self._captured:
            self._handed_over += self._captured_bytes
            self._queue.put(_Batch(tuple(self._captured), self._captured_bytes))
            self._captured = []
            self._captured_bytes = 0
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
        committed = time.monotonic()
        while (item := self._queue.get()) is not None:
            if self._abandoned or self._error is not None:
                continue
            try:
                if isinstance(item, _Prompt):
                    self._store.prompt(item.number, item.tokens, item.text)
                else:
                    self._store.store(item.runs)
                    self._done += item.nbytes
                if time.monotonic() - committed > COMMIT_SECONDS:
                    self._store.commit()
                    committed = time.monotonic()
            except Exception as error:
                self._error = error
            del item
            self._progressed.set()
