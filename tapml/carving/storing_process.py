"""The process that stores a carve: compares, hashes and writes while the model runs in another.

It is not a thread because every comparison, hash and write releases and reacquires the interpreter
lock, which costs the thread that runs the model 30 us each, half as much as the model itself. Only
memory is shared. It needs neither TVM nor torch, and ends when its socket closes.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgpack
import numpy as np

from tapml.carving.shared_memory import DONE, FAILED, STORED, map_block
from tapml.carving.storing import RunStore, StatePiece, StoredLayout, StoredRun
from tapml.execute.arrays import Bytes
from tapml.suite.chunks import ChunkWriter
from tapml.suite.index import connect_index
from tapml.suite.layout import StoredSegment

# Time between commits: a kill loses at most this much and the pending data.
COMMIT_SECONDS: Final = 1.0
_LENGTH: Final = struct.Struct("<I")


def frame(message: Any) -> bytes:
    """Encode one message."""
    data = msgpack.packb(message)
    return _LENGTH.pack(len(data)) + bytes(data)


def receive_frame(connection: socket.socket) -> Any:
    """Wait for one message; None if the other side has closed."""
    header = _receive(connection, _LENGTH.size)
    if header is None:
        return None
    data = _receive(connection, _LENGTH.unpack(header)[0])
    return None if data is None else msgpack.unpackb(data, use_list=False, strict_map_key=False)


def _receive(connection: socket.socket, nbytes: int) -> bytes | None:
    data = bytearray(nbytes)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            return None
        view = view[count:]
    return bytes(data)


class Storing:
    """Open files of one carve."""

    def __init__(self, folder: Path, packs: str) -> None:
        self.connection = connect_index(folder)
        self.store = RunStore(self.connection, ChunkWriter(folder / packs))
        self.layouts: dict[int, StoredLayout] = {}
        self.series: list[tuple[int, dict[str, int]]] = []
        self.committed = time.monotonic()

    def commit(self) -> None:
        """Commit what is stored."""
        self.store.commit()
        self.committed = time.monotonic()

    def close(self) -> None:
        """Close the files."""
        self.store.chunks.close()
        self.connection.close()


class Server:
    """Handles the messages of one connection in sequence."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._blocks: dict[int, Bytes] = {}
        self._progress = np.zeros(FAILED + 1, np.int64)
        self._storing: Storing | None = None
        self._error: str | None = None
        self._handlers: dict[str, Callable[..., None]] = {
            "block": self._block,
            "forget": self._forget,
            "progress": self._take_progress,
            "open": self._open,
            "prompt": self._prompt,
            "series": self._series,
            "layout": self._layout,
            "weight": self._weight,
            "order": self._order,
            "runs": self._runs,
            "finish": self._finish,
        }

    def serve(self) -> None:
        """Handle messages until the other side closes."""
        while (message := receive_frame(self._connection)) is not None:
            self._handlers[message[0]](*message[1:])
        # The run's process is gone: leave the stored tests in a suite that can be opened.
        if self._storing is not None and self._error is None:
            self._storing.commit()

    def _block(self, identifier: int, nbytes: int) -> None:
        _, descriptors, _, _ = socket.recv_fds(self._connection, 1, 1)
        self._blocks[identifier] = map_block(descriptors[0], nbytes)

    def _forget(self, identifier: int) -> None:
        self._blocks.pop(identifier, None)

    def _take_progress(self, identifier: int) -> None:
        self._progress = self._blocks[identifier].view(np.int64)

    def _open(self, folder: str, packs: str) -> None:
        self._error = None
        self._progress[:] = 0
        self._guarded(lambda: self._start(Path(folder), packs))

    def _start(self, folder: Path, packs: str) -> None:
        self._storing = Storing(folder, packs)

    def _prompt(self, number: int, tokens: tuple[int, ...], text: str | None) -> None:
        if self._storing is not None:
            self._storing.store.prompt(number, tokens, text)

    def _series(self, nbytes: int, names: dict[str, int]) -> None:
        if self._storing is not None:
            self._storing.series.append((nbytes, names))

    def _layout(
        self, row: tuple[int, str, str, tuple[int, ...], bytes], segments: tuple[Any, ...]
    ) -> None:
        storing = self._storing
        if storing is None:
            return
        layout = StoredLayout(*row, tuple(StoredSegment(*segment) for segment in segments))
        storing.layouts[layout.id] = layout
        storing.store.layout(layout)

    def _weight(self, name: str, window: tuple[int, int, int], digests: tuple[bytes, ...]) -> None:
        storing = self._storing
        if storing is not None:
            memory = self._window(*window)
            self._guarded(lambda: storing.store.weight(name, memory, digests))
        self._progress[DONE] += 1

    def _order(self, number: int, itemsize: int, window: tuple[int, int, int]) -> None:
        storing = self._storing
        if storing is not None:
            memory = self._window(*window)
            self._guarded(lambda: storing.store.order(number, itemsize, memory))
        self._progress[DONE] += 1

    def _runs(self, runs: tuple[Any, ...]) -> None:
        storing = self._storing
        if storing is not None:
            self._guarded(lambda: self._store(storing, runs))
        self._progress[DONE] += 1

    def _store(self, storing: Storing, runs: tuple[Any, ...]) -> None:
        storing.store.store([self._run(storing, run) for run in runs])
        self._progress[STORED] = storing.store.stored_bytes
        if time.monotonic() - storing.committed > COMMIT_SECONDS:
            storing.commit()

    def _run(self, storing: Storing, run: tuple[Any, ...]) -> StoredRun:
        number, prompt, step, layout, segments, before, after = run
        return StoredRun(
            number,
            prompt,
            step,
            storing.layouts[layout],
            tuple(self._window(*segment) for segment in segments),
            tuple(self._piece(storing, *piece) for piece in before),
            tuple(self._piece(storing, *piece) for piece in after),
        )

    def _piece(
        self,
        storing: Storing,
        series: int,
        basis: int,
        count: int,
        content: bytes | tuple[int, int, int],
    ) -> StatePiece:
        nbytes, names = storing.series[series]
        found = (
            np.frombuffer(content, np.uint8)
            if isinstance(content, bytes)
            else self._window(*content)
        )
        return StatePiece(series, nbytes, names, basis, count, found)

    def _window(self, block: int, offset: int, nbytes: int) -> Bytes:
        return self._blocks[block][offset : offset + nbytes]

    def _finish(self) -> None:
        storing = self._storing
        digests: dict[str, list[bytes]] = {}
        if storing is not None:
            self._guarded(storing.commit)
            self._progress[STORED] = storing.store.stored_bytes
            digests = storing.store.weight_digests
            self._guarded(storing.close)
        self._storing = None
        self._connection.sendall(frame((self._error, digests)))

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run `action` unless an earlier one failed; record its failure."""
        if self._error is not None:
            return
        try:
            action()
        except Exception as error:
            self._error = f"{type(error).__name__}: {error}"
            self._progress[FAILED] = 1


def main() -> None:
    """Serve the socket whose descriptor is the only argument."""
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        Server(connection).serve()
    # Mapped blocks may be dropped in any order.
    os._exit(0)


if __name__ == "__main__":
    main()
