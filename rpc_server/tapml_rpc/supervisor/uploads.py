"""A session's batches on their way to its worker: counted, in turn, their payloads in the ring."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from tapml_rpc import wire
from tapml_rpc.bounds import Bounds
from tapml_rpc.scattered import Chunk, in_one_piece
from tapml_rpc.supervisor.arriving_chunk import is_one_write
from tapml_rpc.supervisor.last_commands import LastCommands
from tapml_rpc.supervisor.pipe import INLINE_BYTES
from tapml_rpc.supervisor.ring import Room
from tapml_rpc.supervisor.shared_reading import MOST_CHUNK_BYTES, MOST_HEADER_BYTES, Taken
from tapml_rpc.supervisor.turns import Turns
from tapml_rpc.supervisor.window import Window
from tapml_rpc.supervisor.worker_process import WorkerProcess
from tapml_targets.errors import ProtocolError, TapmlError

_NO_CHUNK: Final = memoryview(b"")


class Uploads:
    """Hands a session's messages to its worker.

    Parameters
    ----------
    token
        The session's.
    worker
        Its worker.
    bounds
        What it may send ahead.
    turns
        Those of all sessions.
    last
        Told of every batch that is handed on.
    write
        Does what writes to the worker's pipe.

    Attributes
    ----------
    short
        How many batches in a row were such as a worker may read by itself.
    """

    def __init__(
        self,
        token: bytes,
        worker: WorkerProcess,
        bounds: Bounds,
        turns: Turns,
        last: LastCommands,
        write: Callable[[Callable[[], None]], None],
    ) -> None:
        self._token = token
        self._worker = worker
        self._turns = turns
        self._last = last
        self._write = write
        self._window = Window(bounds)
        # Batches that wait for a turn.
        self._waiting: deque[tuple[int, bytes, Chunk | Room]] = deque()
        self._bounds = bounds
        self._closed = False
        self.short = 0

    def room(self, header: wire.Header, nbytes: int) -> Room | None:
        """Where the chunk of a message is best read to; None for anywhere.

        What is given is given back by :meth:`add` with the same message, or by :meth:`refuse`.

        Raises
        ------
        ProtocolError
            If there is not so much.
        """
        if header.get("type") != "batch" or nbytes <= INLINE_BYTES:
            return None
        reserved = self._worker.up.reserve(nbytes)
        if reserved is None:
            raise _too_much()
        self._worker.board.receives = True
        return Room(*reserved)

    def refuse(self, room: Room) -> None:
        """Nothing will come of a message that was given room."""
        self._worker.up.take_back(room)
        self._worker.board.receives = False

    def add(self, header: wire.Header, packed: bytes, chunk: Chunk | Room) -> None:
        """Take a batch.

        Raises
        ------
        ProtocolError
            What is wrong with it.
        """
        try:
            sequence = self._window.add(header, len(chunk))
        except TapmlError:
            if isinstance(chunk, Room):
                self.refuse(chunk)
            raise
        self.short = self.short + 1 if self._may_be_read_there(header, packed, len(chunk)) else 0
        self._waiting.append((sequence, packed, chunk))
        self.take_turns()

    def _may_be_read_there(self, header: wire.Header, packed: bytes, nbytes: int) -> bool:
        if len(packed) > MOST_HEADER_BYTES:
            return False
        into_memory = self._worker.board.opens_memory and is_one_write(header["commands"], nbytes)
        return nbytes <= MOST_CHUNK_BYTES or into_memory

    def remember(self, batch: Taken) -> bool:
        """Remember a batch that the worker has taken by itself; False where it can be none."""
        if not self._window.last < batch.sequence <= wire.MAX_INTEGER:
            return False
        with suppress(ProtocolError):
            self._commands(batch)
            self._last.add(batch.sequence, batch.packed)
            return True
        return False

    def adopt(self, batch: Taken, answered: int) -> None:
        """Go on from the last batch that the worker has taken by itself.

        Parameters
        ----------
        answered
            The last batch that is; if it is not this one, that is counted as any other now.
        """
        sequence = batch.sequence
        self.short = 0
        self._window.note(sequence, self._commands(batch), batch.chunk_bytes)
        self._turns.have_begun(self._token, self._window.cost(sequence))
        if sequence <= answered:
            self.answered(sequence)

    def _commands(self, batch: Taken) -> list[Any]:
        commands = wire.unpack(batch.packed).get("commands")
        return wire.array(commands, "commands", self._bounds.commands)

    def take_turns(self) -> None:
        """Hand on the batches whose turn it is."""
        while self._waiting and not self._closed:
            sequence, packed, chunk = self._waiting[0]
            if not self._turns.begin(self._token, self._window.cost(sequence)):
                return
            self._waiting.popleft()
            self._worker.board.shared = self._turns.shared(self._token)
            self._last.add(sequence, packed)
            self.forward(packed, chunk)

    def forward(self, packed: bytes, chunk: Chunk | Room = _NO_CHUNK) -> None:
        """Hand a message on at once.

        Raises
        ------
        ProtocolError
            If there is no room for its chunk.
        """
        pipe, nbytes = self._worker.pipe, len(chunk)
        if isinstance(chunk, Room):
            start: int | None = chunk.start
            self._worker.board.receives = False
        elif nbytes <= INLINE_BYTES:
            inline = in_one_piece(chunk)
            self._write(lambda: pipe.send(packed, inline))
            return
        else:
            start = self._worker.up.place(chunk)
        if start is None:
            raise _too_much()
        place = start, nbytes
        self._write(lambda: pipe.send(packed, place=place))

    def answered(self, sequence: int) -> None:
        """Batches up to this one are done: their turn ends, and another one's may come."""
        self._turns.end(self._token, self._window.answered(sequence))
        self.take_turns()

    @property
    def waits(self) -> bool:
        """Whether a batch waits for a turn."""
        return bool(self._waiting)

    def worker_has_none(self) -> bool:
        """Whether no batch is with the worker."""
        return len(self._window) == len(self._waiting)

    def close(self) -> None:
        """Hand on nothing more."""
        self._closed = True
        self._turns.leave(self._token)
        self._waiting.clear()


def _too_much() -> ProtocolError:
    return ProtocolError("more bytes wait for an answer than this server takes")
