"""Plain data connections as a supervisor sees them: until a worker serves them, and at their end.

The first message of a connection says whose it is. From then on the supervisor holds the descriptor
only to notice the connection's end whatever the worker does, to see whether a stopped worker leaves
anything unread, and to say the last word once the worker has gone.
"""

from __future__ import annotations

import math
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from selectors import EVENT_READ
from typing import Final

from tapml_rpc import wire
from tapml_rpc.failures import error_reply
from tapml_rpc.flow import Acceptor, Forwarder
from tapml_rpc.standard_error import print_fault
from tapml_rpc.transport import EndedError
from tapml_rpc.zmtp import framing
from tapml_rpc.zmtp.incoming import Incoming
from tapml_targets.errors import ProtocolError, TapmlError

MOST_CONNECTIONS: Final = 256
HANDSHAKE_SECONDS: Final = 3.0
# How long half a message is kept.
HALF_SECONDS: Final = 30.0
PARTING_SECONDS: Final = 2.0
# Several times what a client sends ahead of its answers. A peer that sends on is not reading.
MOST_DISCARDED_BYTES: Final = 128 << 20
_MOST_REFUSALS: Final = 256
_DISCARD_BYTES: Final = 256 << 10
_BACKLOG: Final = 128
# Linux has it; elsewhere a connection that is closed for reading and writing is noticed.
_HUNG_UP: Final[int] = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR

Claim = Callable[[wire.Header, socket.socket, bytes], None]
"""Gives a connection to the session that a first message names, with all that has come of it.

Raises TapmlError if that session is not the sender's.
"""


class DataListener:
    """Accepts connections at ``tcp://host:port`` and gives each to its session with `claim`.

    A port ``*`` takes a free one; `address` is what clients are given. One more than `most`
    connections replaces the oldest. Raises OSError if the address cannot be used.
    """

    def __init__(
        self, forwarder: Forwarder, address: str, claim: Claim, most: int = MOST_CONNECTIONS
    ) -> None:
        self._forwarder = forwarder
        self._claim = claim
        self._most = most
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        number = 0 if port == "*" else int(port)
        family, _, _, _, where = socket.getaddrinfo(
            host.strip("[]"), number, type=socket.SOCK_STREAM
        )[0]
        listener = socket.create_server(where[:2], family=family, backlog=_BACKLOG)
        listener.setblocking(False)
        host, number = listener.getsockname()[:2]
        self.address = f"tcp://[{host}]:{number}" if ":" in host else f"tcp://{host}:{number}"
        # Oldest first.
        self._newcomers: dict[_Newcomer, None] = {}
        self._acceptor = Acceptor(forwarder, listener, self._greet)

    def serve(self) -> bool:
        """Nothing waits here."""
        return False

    def check(self, now: float) -> None:
        """Disconnect peers that keep memory for long without saying whose they are."""
        self._acceptor.look(now)
        for newcomer in list(self._newcomers):
            if now > newcomer.deadline:
                self._end(newcomer)

    def close(self) -> None:
        """End all connections."""
        self._acceptor.close()
        for newcomer in list(self._newcomers):
            self._end(newcomer)

    def _greet(self, accepted: socket.socket, address: object) -> None:
        if len(self._newcomers) >= self._most:
            self._end(next(iter(self._newcomers)))
        try:
            newcomer = _Newcomer(accepted, self._claim)
        except OSError:
            # It has gone again.
            accepted.close()
            return
        self._newcomers[newcomer] = None
        self._forwarder.watch(accepted, EVENT_READ, partial(self._read, newcomer))

    def _read(self, newcomer: _Newcomer, events: int) -> None:
        if newcomer not in self._newcomers:
            return
        try:
            newcomer.read()
        except _ClaimedError:
            self._forget(newcomer)
        except (EndedError, OSError):
            self._end(newcomer)
        except Exception as error:
            # An internal fault must cost only this client.
            print_fault(error)
            self._end(newcomer)

    def _end(self, newcomer: _Newcomer) -> None:
        self._forget(newcomer)
        newcomer.connection.close()

    def _forget(self, newcomer: _Newcomer) -> None:
        del self._newcomers[newcomer]
        self._forwarder.forget(newcomer.connection)
        newcomer.forget()


class _ClaimedError(Exception):
    """It has a session."""


class _Newcomer:
    """A connection of which nothing is known; it is closed after `deadline`, monotonic."""

    def __init__(self, connection: socket.socket, claim: Claim) -> None:
        self.connection = connection
        self.deadline = time.monotonic() + HANDSHAKE_SECONDS
        self._claim = claim
        self._incoming = Incoming(connection, b"ROUTER", self._place, self._answer)
        self._incoming.most_header_bytes = wire.MAX_STRANGER_BYTES
        self._header: wire.Header | None = None
        self._error: TapmlError | None = None
        self._refusals = 0
        self._halfway = False
        # What it may still send once it has been refused.
        self._left = 0
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Finds a host that has vanished; a client that is merely stopped may come back.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.send(framing.GREETING + framing.ready(b"ROUTER"))

    def read(self) -> None:
        """Read what has come; raises EndedError if the peer has gone or sends without end."""
        if self._left:
            count = len(self.connection.recv(_DISCARD_BYTES))
            self._left -= count
            if not count or self._left <= 0:
                raise EndedError("it has hung up, or reads nothing")
            return
        try:
            self._take()
            # All of it was refused, or is half a message: at most so many refusals are sent.
            while self._incoming.pending:
                self._take()
        except ProtocolError as error:
            self._part(error)
            return
        if not self._incoming.ready:
            return
        halfway, self._halfway = self._halfway, self._incoming.halfway
        if not self._halfway:
            self.deadline = math.inf
        elif not halfway:
            self.deadline = time.monotonic() + HALF_SECONDS

    def forget(self) -> None:
        """Release what has been read of it."""
        self._incoming.forget()

    def _take(self) -> None:
        message = self._incoming.next()
        if message is not None:
            error, self._error = self._error, None
            self._refuse(error or self._hand_over(message[0], None))

    def _place(self, packed: bytes, nbytes: int) -> memoryview | None:
        """No memory for a chunk: its header says whose the connection is, or it is refused."""
        self._error = self._hand_over(packed, nbytes)
        return None

    def _hand_over(self, packed: bytes, chunk_bytes: int | None) -> TapmlError:
        """Give it to the session that a message names; what is wrong with the message."""
        self._header = None
        try:
            if not packed:
                raise ProtocolError(
                    "the first header on a data connection has 1 to "
                    f"{wire.MAX_STRANGER_BYTES} bytes"
                )
            self._header = wire.unpack(packed)
            received = self._incoming.begun(packed, chunk_bytes)
            self._claim(self._header, self.connection, received)
        except TapmlError as error:
            return error.with_traceback(None)
        raise _ClaimedError

    def _answer(self, command: bytes) -> None:
        with suppress(BlockingIOError):
            self.connection.send(command)

    def _refuse(self, error: TapmlError) -> None:
        """Tell the peer what is wrong with its message; the next one may be right."""
        self._refusals += 1
        reply = error_reply(error, self._header)
        if self._refusals > _MOST_REFUSALS or not self._send(reply):
            raise EndedError("all its messages are refused")

    def _part(self, error: ProtocolError) -> None:
        """Tell the peer why this is the end, and read on for a moment so that it can read that.

        A connection that is closed over unread bytes is reset, and that makes the other end drop
        what had come for it.
        """
        if self._incoming.ready:
            self._send(error_reply(error, None))
        self.connection.shutdown(socket.SHUT_WR)
        self._left = MOST_DISCARDED_BYTES
        self.deadline = time.monotonic() + PARTING_SECONDS

    def _send(self, reply: bytes) -> bool:
        with suppress(BlockingIOError):
            sent = framing.frame_head(len(reply)) + reply
            return self.connection.send(sent) == len(sent)
        return False


class WorkerServed:
    """One session's data connection once its worker serves it; this object owns the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._gone = False

    def gone(self) -> bool:
        """Whether the client had hung up by the last call: its worker may say more meanwhile."""
        gone, self._gone = self._gone, bool(self._poll(_HUNG_UP) & _HUNG_UP)
        return gone

    def unread(self) -> bool:
        """Whether bytes have come that the worker has not received."""
        return bool(self._poll(select.POLLIN))

    def part(self, last: bytes) -> None:
        """End it after its worker: send a `last` header, and read until the peer closes it.

        A connection that is closed over unread bytes is reset, and that makes the other end drop
        what had come for it. Takes up to ``PARTING_SECONDS``; what still comes is bounded.
        """
        deadline, left = time.monotonic() + PARTING_SECONDS, MOST_DISCARDED_BYTES
        with self._socket, suppress(OSError):
            if last:
                self._socket.send(framing.frame_head(len(last)) + last)
            self._socket.shutdown(socket.SHUT_WR)
            while left > 0 and (seconds := deadline - time.monotonic()) > 0:
                if not self._poll(select.POLLIN, seconds):
                    return
                nbytes = len(self._socket.recv(_DISCARD_BYTES))
                left -= nbytes
                if not nbytes:
                    return

    def _poll(self, events: int, seconds: float = 0.0) -> int:
        poll = select.poll()
        poll.register(self._socket, events)
        return sum(found for _, found in poll.poll(1000 * seconds))
