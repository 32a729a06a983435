"""What a worker sends its client: itself where it can, else through the supervisor.

Results that are large go straight from where they lie into the client's socket, if the worker
shares that and it is its turn; all others go through the ring and the pipe.
"""

from __future__ import annotations

import socket
import time
from typing import Final, TypeAlias

from tapml_rpc import wire
from tapml_rpc.reads import PIECE_BYTES
from tapml_rpc.supervisor.board import Board
from tapml_rpc.supervisor.gate import Gate
from tapml_rpc.supervisor.line import Line
from tapml_rpc.supervisor.pipe import INLINE_BYTES, Pipe
from tapml_rpc.supervisor.ring import Ring
from tapml_rpc.supervisor.shared_line import SENT

_ROOM_SECONDS: Final = 0.0005
_YOUR_TURN: Final = wire.pack({"type": "sent"})

Message: TypeAlias = "tuple[bytes, list[memoryview | bytes]]"


class Answers:
    """The messages of one session; see :class:`tapml_rpc.piece_memory.Pieces`.

    Parameters
    ----------
    pipe, down, board
        To the supervisor.

    Attributes
    ----------
    held
        A message whose bytes lie in the device's memory. The batch's answer may follow at once, and
        then both go together; :meth:`flush` sends it before.
    reads
        Whether this process reads what the client sends: then nobody else is in the way.
    """

    def __init__(self, pipe: Pipe, down: Ring, board: Board) -> None:
        self._pipe = pipe
        self._down = down
        self._board = board
        self._line: Line | None = None
        self.reads = False
        # How many messages went by the supervisor.
        self._handed_over = 0
        # Room of the ring that a read was given, and that no message has taken along yet.
        self._taken: tuple[int, memoryview] | None = None
        self.held: Message | None = None
        # Whether the batch in hand moves so much that its answer is worth a turn of ours.
        self._moves_much = False

    def open_line(self, connection: socket.socket, gate: Gate) -> None:
        """Share the client's connection from now on; both are this object's."""
        self._line = Line(connection, gate, self._pipe.fileno(), self._wait)

    def take(self) -> memoryview:
        """Memory of the ring for a piece of a streamed read, which is sent from there."""
        self._taken = self._room(PIECE_BYTES)
        return self._taken[1]

    def answer(self, nbytes: int) -> memoryview:
        """Memory of the ring for the one read that an answer takes along."""
        self._taken = self._room(nbytes)
        return self._taken[1]

    def direct(self) -> bool:
        """Whether what is sent now leaves from where it lies before anything else happens.

        Not where sessions share the device: what a client that reads slowly is to be sent must not
        keep its batch, and so its turn.
        """
        line = self._line
        return line is not None and not self._board.shared and line.is_free(self._handed_over)

    def give_back(self) -> None:
        """Let the ring have what was taken last: nobody else would ever release it."""
        if self._taken is not None:
            self._down.trim(self._taken[0], 0)
            self._taken = None

    def lend(self, piece: memoryview, tracker: object) -> None:
        """The supervisor gives the piece back by itself."""

    def send(
        self,
        packed: bytes,
        parts: list[memoryview | bytes],
        *,
        answers: int | None = None,
        brought_much: bool = False,
    ) -> None:
        """Send a message; waits while the client takes nothing.

        Parameters
        ----------
        answers
            The batch that this is the answer to; None while that goes on.
        brought_much
            Whether that batch came with a payload.

        Raises
        ------
        OSError
            If the supervisor has ended the session.
        """
        # The answer to a payload goes by the supervisor where that is reading what comes next
        # from the same socket: we would wait for each other.
        if sum(map(len, parts)) > INLINE_BYTES:
            self._moves_much = True
        if answers is None:
            self.flush()
            if self._taken is None and self.direct():
                self.held = packed, parts
            else:
                # The supervisor sends a piece while the device gives the next.
                self._hand_over(packed, parts)
            return
        messages: list[Message] = [(packed, parts)]
        if self.held is not None:
            messages.insert(0, self.held)
            self.held = None
        worth_it = self._moves_much or self.reads
        worth_it = worth_it or (brought_much and not self._board.receives)
        if not worth_it or not self._send_directly(messages, answers):
            for message in messages:
                self._hand_over(*message)
        if answers is not None:
            self._moves_much = False

    def flush(self) -> None:
        """Send what is held: the device's memory is about to change, or time to pass."""
        held, self.held = self.held, None
        if held is not None and not self._send_directly([held]):
            self._hand_over(*held)

    def _send_directly(self, messages: list[Message], answers: int | None = None) -> bool:
        line = self._line
        if line is None or not self.direct() or not line.send(messages, answers):
            return False
        if line.is_waited_for():
            self._pipe.send(_YOUR_TURN, place=(SENT, 0))
        self.give_back()
        return True

    def _hand_over(self, packed: bytes, parts: list[memoryview | bytes]) -> None:
        self._handed_over += 1
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

    def _room(self, nbytes: int) -> tuple[int, memoryview]:
        """Room in the ring; the client takes its bytes, or the supervisor ends this process."""
        while (room := self._down.reserve(nbytes)) is None:
            self._wait(True)
            time.sleep(_ROOM_SECONDS)
        self._wait(False)
        return room

    def _wait(self, waits: bool) -> None:
        """The client takes nothing: none of the device's time passes."""
        if waits:
            self._board.rest()
        self._board.paused = waits
