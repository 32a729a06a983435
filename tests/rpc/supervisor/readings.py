"""A worker's reading of its client's connection, and sessions of which one reads."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import termios
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tapml_rpc import wire
from tapml_rpc.bounds import Bounds
from tapml_rpc.client import Session
from tapml_rpc.supervisor.board import Board
from tapml_rpc.supervisor.own_reading import OwnReading
from tapml_rpc.supervisor.pipe import Frame, Pipe
from tapml_rpc.supervisor.ring import Ring, make_memory
from tapml_rpc.supervisor.shared_reading import READING_BYTES, SharedReading
from tapml_rpc.zmtp import framing
from tests.rpc.faults.ground import Served, wait_for

# As a worker's system calls are numbered where it waits for its client: x86-64 and the others.
WAITS_FOR_BOTH = (232, 281, 22)
NAMES = {"session": b"it", "epoch": b"life"}


class Ends:
    """A worker's reading, the supervisor's view of it, and the client's socket."""

    def __init__(self) -> None:
        self.client, self.connection = socket.socketpair()
        self.connection.setblocking(False)
        self.supervisor, self.pipe = socket.socketpair()
        descriptor = make_memory(READING_BYTES, "test")
        self.shared = SharedReading(os.dup(descriptor))
        self.board = Board(Ring(make_memory(4096, "test")))
        self.reading = OwnReading(
            self.connection,
            SharedReading(descriptor),
            NAMES,
            Bounds(),
            Pipe(self.pipe),
            self.board,
        )
        self.shared.hand_over(1)
        self.reading.begin(1)

    def next(self, last: int = 3, *, busy: bool = False) -> tuple[wire.Header, Frame] | None:
        """What is there next, once something has come."""
        assert not self.reading.wait()
        return self.reading.next(last, busy=busy, rested=True)

    def left(self) -> bytes:
        """What the supervisor finds that nobody has taken."""
        return bytes(self.shared.ahead[self.shared.start : self.shared.end])

    def close(self) -> None:
        for each in (self.client, self.connection, self.supervisor, self.pipe):
            each.close()


def batch(sequence: int, *commands: Any, **fields: Any) -> bytes:
    """A batch's header."""
    given = {"type": "batch", "sequence": sequence, "commands": list(commands)}
    return wire.pack(given | NAMES | fields)


def message(packed: bytes, *chunks: bytes) -> bytes:
    return b"".join(framing.message_parts(packed, chunks))


def reads(worker: int) -> bool:
    """Whether a worker waits for its client itself."""
    call = Path(f"/proc/{worker}/syscall").read_text("ascii").split()[0]
    return call.isdigit() and int(call) in WAITS_FOR_BOTH


def unread(connection: socket.socket) -> int:
    """Bytes that the other end has not received."""
    answer = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(answer, sys.byteorder)


def lent(server: Served, stack: ExitStack) -> tuple[Session, int]:
    """A session whose worker reads."""
    session, worker = server.open("zmq")
    stack.enter_context(session)
    lend_to(worker, session)
    return session, worker


def lend_to(worker: int, session: Session) -> None:
    """Have a session's worker read."""

    def once_more() -> bool:
        session.fence()
        return reads(worker)

    wait_for(once_more)
