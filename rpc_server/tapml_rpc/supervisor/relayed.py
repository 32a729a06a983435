"""A relayed session's messages: on their way through the supervisor, and as its worker gets them.

Payloads lie in two rings of shared memory, everything else goes through the pipe.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tapml_rpc import wire
from tapml_rpc.device.commands import PIECE_BYTES, PieceMemory
from tapml_rpc.supervisor.board import Board
from tapml_rpc.supervisor.pipe import INLINE_BYTES, NOWHERE, Frame, Pipe, Ring
from tapml_rpc.welcome import Bounds
from tapml_targets.errors import ProtocolError

if TYPE_CHECKING:
    # Not for a worker, which begins none.
    from tapml_rpc.supervisor.worker_process import WorkerProcess


class Channel(Protocol):
    """Sends to one client. All methods run on the thread of the front that owns it."""

    def send_control(self, packed: bytes) -> bool:
        """Send a packed header on the control connection; False if the client is gone."""

    def send_data(
        self,
        packed: bytes,
        parts: Sequence[memoryview | bytes],
        sent: Callable[[], None] | None = None,
    ) -> bool:
        """Send a packed header and the parts of its chunk on the data connection.

        The caller owns the memory of `parts`. `sent` is called once they may be overwritten: from
        any thread, in the order of the calls, and also if the client has gone. False if nobody
        takes the message; the caller then ends the session.
        """


class Window:
    """Batches under way: their sequence and their chunks' bytes, oldest first."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._batches: deque[tuple[int, int]] = deque()
        self._nbytes = 0
        self._last = -1

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, header: wire.Header, nbytes: int) -> int:
        """Check a batch and count it; its sequence. Raises as :meth:`check`."""
        sequence = self.check(header, nbytes)
        self._last = sequence
        self._batches.append((sequence, nbytes))
        self._nbytes += nbytes
        return sequence

    def check(self, header: wire.Header, nbytes: int) -> int:
        """Check a batch; its sequence. Raises ProtocolError, out of bounds or order."""
        bounds = self._bounds
        sequence = wire.integer(header.get("sequence"), "sequence")
        wire.array(header.get("commands"), "commands", bounds.commands)
        if sequence <= self._last:
            raise ProtocolError(
                f"batch {sequence} does not follow batch {self._last}: sequence rises"
            )
        if len(self._batches) >= bounds.unanswered:
            raise ProtocolError(
                f"{len(self._batches)} batches wait for an answer; at most {bounds.unanswered} may"
            )
        if self._nbytes + nbytes > bounds.upload_window:
            raise ProtocolError(
                f"{self._nbytes + nbytes} bytes wait for an answer; at most "
                f"{bounds.upload_window} may"
            )
        return sequence

    def answered(self, sequence: int) -> None:
        """Forget all batches up to this one."""
        while self._batches and self._batches[0][0] <= sequence:
            self._nbytes -= self._batches.popleft()[1]


_NO_CHUNK: Final = memoryview(b"")


class RelayedData:
    """Brings a worker its session's messages, and the client what the worker sends.

    `bounds` limit what the client may send ahead. `write` runs what writes to the worker's pipe.
    """

    def __init__(
        self,
        worker: WorkerProcess,
        channel: Channel,
        bounds: Bounds,
        write: Callable[[Callable[[], None]], None],
    ) -> None:
        self._worker = worker
        self._channel = channel
        self._write = write
        self._window = Window(bounds)

    def add(self, header: wire.Header, nbytes: int) -> None:
        """Count a batch; raises ProtocolError if it is malformed or out of bounds."""
        self._window.add(header, nbytes)

    def forward(self, packed: bytes, chunk: memoryview = _NO_CHUNK) -> None:
        """Hand a message on; raises ProtocolError if there is no room for its chunk."""
        pipe, nbytes = self._worker.pipe, len(chunk)
        if nbytes <= INLINE_BYTES:
            self._write(lambda: pipe.send(packed, chunk))
            return
        room = self._worker.up.reserve(nbytes)
        if room is None:
            raise ProtocolError("more bytes wait for an answer than this server takes")
        place = room[0], nbytes
        room[1][:] = chunk
        self._write(lambda: pipe.send(packed, place=place))

    def pass_on(self, header: wire.Header, frame: Frame) -> bool:
        """Pass on a worker's answer; False if nobody takes it. May raise ProtocolError."""
        if header.get("type") == "done":
            self._window.answered(wire.integer(header.get("sequence"), "sequence"))
        down, sent = self._worker.down, None
        parts: list[bytes | memoryview] = [frame.inline] if frame.inline else []
        if frame.start != NOWHERE:
            parts = [down.view(frame.start, frame.nbytes)]
            sent = partial(down.release, frame.start, frame.nbytes)
        return self._channel.send_data(frame.packed, parts, sent)

    def has_none(self) -> bool:
        """Whether no batch waits for an answer."""
        return not self._window


_ROOM_SECONDS: Final = 0.0005


class Received(NamedTuple):
    """A message: its header, unpacked and as it came, and its chunk."""

    header: wire.Header
    packed: bytes
    chunk: memoryview


class RelayedChannel(PieceMemory):
    """The worker's end of `pipe` and of the rings `up` (to it) and `down`, which reads fill."""

    def __init__(self, pipe: Pipe, up: Ring, down: Ring, board: Board) -> None:
        self._pipe = pipe
        self._up = up
        self._down = down
        self._board = board
        # Batches that may not be answered yet, with their part of the ring.
        self._places: dict[int, tuple[int, int]] = {}
        # Room of the ring that was given to a read and that no message has used yet.
        self._taken: tuple[int, memoryview] | None = None

    def next(self) -> Received | None:
        """The next message, waited for; None at the supervisor's end."""
        while (frame := self._pipe.next()) is None:
            if not self._pipe.receive():
                return None
        header = wire.unpack(frame.packed)
        if header.get("type") != "batch":
            self._board.take()
            return Received(header, frame.packed, memoryview(frame.inline))
        sequence = wire.integer(header.get("sequence"), "sequence")
        self._board.last.add(sequence, frame.packed)
        self._board.take(sequence)
        chunk = memoryview(frame.inline)
        if frame.start != NOWHERE:
            chunk = self._up.view(frame.start, frame.nbytes)
            self._places[sequence] = (frame.start, frame.nbytes)
        return Received(header, frame.packed, chunk)

    def answered(self, sequence: int) -> None:
        """A batch is about to be answered: the client may fill its part of the ring again."""
        place = self._places.pop(sequence, None)
        if place is not None:
            self._up.release(*place)

    def send(self, packed: bytes, parts: list[memoryview | bytes] | None = None) -> None:
        """Send a message, waiting for room; raises OSError if the session has ended."""
        parts = parts or []
        nbytes = sum(map(len, parts))
        taken, self._taken = self._taken, None
        if taken is not None:
            start, memory = taken
            there = any(isinstance(part, memoryview) and part.obj is memory.obj for part in parts)
            self._down.trim(start, nbytes if there else 0)
            if there:
                self._pipe.send(packed, place=(start, nbytes))
                return
        if nbytes <= INLINE_BYTES:
            self._pipe.send(packed, b"".join(parts))
            return
        start, memory = self._room(nbytes)
        position = 0
        for part in parts:
            memory[position : position + len(part)] = part
            position += len(part)
        self._pipe.send(packed, place=(start, nbytes))

    def take(self) -> memoryview:
        """Memory of the ring for a piece of a streamed read, sent from there."""
        self._taken = self._room(PIECE_BYTES)
        return self._taken[1]

    def answer(self, nbytes: int) -> memoryview:
        """Memory of the ring for the one read that an answer carries."""
        self._taken = self._room(nbytes)
        return self._taken[1]

    def give_back(self) -> None:
        """Return the memory taken last to the ring: no message will release it."""
        if self._taken is not None:
            self._down.trim(self._taken[0], 0)
            self._taken = None

    def _room(self, nbytes: int) -> tuple[int, memoryview]:
        """Room in the ring, waited for until the client takes bytes or the session ends."""
        while (room := self._down.reserve(nbytes)) is None:
            # The client takes nothing: this is not the device's time.
            self._board.rest()
            self._board.paused = True
            time.sleep(_ROOM_SECONDS)
        self._board.paused = False
        return room
