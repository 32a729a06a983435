"""The server's end of one ZMTP connection: nothing that waits. A ROUTER to its peer."""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, Protocol

from tapml_rpc.connection import EndedError
from tapml_rpc.zmtp import framing
from tapml_rpc.zmtp.incoming import Incoming, Message, Place

# What a session's ring holds, and its small messages.
MOST_UNSENT_BYTES: Final = 40 << 20
# Behind so much the answer to a heartbeat says nothing: the peer reads no more, or hears us anyway.
_HEARS_US_BYTES: Final = 64 << 10
_MOST_PARTS: Final = 64

Parts = Sequence[memoryview | bytes]
Sent = Callable[[], None]


class Turn(Protocol):
    """Lets one of two processes send."""

    def begin(self) -> bool:
        """Begin to send; False while the other one does."""

    def end(self) -> None:
        """Nothing more waits to be sent."""

    def forget(self) -> None:
        """The connection is gone."""


class Peer:
    """A connection that was accepted.

    Parameters
    ----------
    connection
        This object's from now on.
    opened
        When, by the monotonic clock.
    place
        Asked where the chunks of messages go; see :data:`tapml_rpc.zmtp.incoming.Place`.

    Attributes
    ----------
    opened
        As given.
    closed
        Whether it has ended.
    unsent_bytes
        What waits for the peer to take it.
    turn
        Where another process sends on this connection too: says who may. What is sent here then
        waits for it, and for :meth:`settle`.
    watch_room
        Called with whether somebody should :meth:`flush` once the peer takes more.
    muted
        Whether nothing more is sent to it: see :meth:`mute`.
    reads
        Whether this process reads what the peer sends, and not another one.
    watch_reads
        Called when that changes.
    """

    def __init__(self, connection: socket.socket, opened: float, place: Place) -> None:
        self.opened = opened
        self.closed = False
        self.unsent_bytes = 0
        self.watch_room: Callable[[bool], None] | None = None
        self.reads = True
        self.watch_reads: Callable[[], None] | None = None
        self.muted = False
        self._waits = False
        self.turn: Turn | None = None
        self._socket = connection
        connection.setblocking(False)
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Finds a host that has vanished; a client that is merely stopped may come back.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._incoming = Incoming(connection, b"ROUTER", place, self._answer)
        # Parts on their way, each with what to call when it has left.
        self._unsent: deque[tuple[memoryview | bytes, Callable[[], None] | None]] = deque()
        self.put([framing.GREETING + framing.ready(b"ROUTER")])

    def fileno(self) -> int:
        """What a selector takes; -1 once released."""
        return self._socket.fileno()

    @property
    def ready(self) -> bool:
        """Whether the peer has ended its handshake."""
        return self._incoming.ready

    @property
    def routing_id(self) -> bytes:
        """What the peer calls itself, once it is ready; it proves nothing."""
        return self._incoming.routing_id

    @property
    def received_bytes(self) -> int:
        """All that has come from it: any more of that is a sign of life."""
        return self._incoming.received_bytes

    @property
    def waits_for_room(self) -> bool:
        """Whether something waits for the peer to take it."""
        return self._waits

    @property
    def pending(self) -> bool:
        """Whether :meth:`next` may have something even if nothing more comes."""
        return self._incoming.pending

    @property
    def holds(self) -> bool:
        """Whether it keeps memory: half a message that came, or what the peer has not taken."""
        return self.muted or self._incoming.halfway or self.unsent_bytes > 0

    def bound_headers(self, nbytes: int) -> None:
        """Keep no header over so many bytes from now on; see :class:`Incoming`."""
        self._incoming.most_header_bytes = nbytes

    def next(self) -> Message | None:
        """The next message; None while it has not all come, or others should have their turn.

        Raises
        ------
        EndedError, ProtocolError
            If the peer has gone, or is to be hung up on.
        """
        if self.closed:
            raise EndedError("closed")
        return self._incoming.next() if self.reads else None

    def lend_reading(self) -> bool:
        """Let another process read from now on; False in the middle of what comes."""
        if self.closed or not self._incoming.between:
            return False
        self._set_reads(False)
        return True

    def have_reading(self, received: bytes) -> None:
        """Read again, after what the other process has received and not taken."""
        self._incoming.put_ahead(received)
        self._set_reads(True)

    def send(
        self, packed: bytes, parts: Parts = (), sent: Callable[[], None] | None = None
    ) -> bool:
        """Send a message; False where nobody takes it.

        Parameters
        ----------
        parts
            Of its chunk, sent from where they lie.
        sent
            Called once `parts` may be overwritten, in the order of the calls, and also where
            nobody takes them.
        """
        return self.put(framing.message_parts(packed, parts), sent)

    def put(self, parts: Parts, sent: Callable[[], None] | None = None) -> bool:
        """Send bytes as they are, as far as the peer takes them; the rest waits."""
        if not self.closed and not self.muted:
            nbytes = sum(map(len, parts))
            if self.unsent_bytes + nbytes > MOST_UNSENT_BYTES:
                self.close()
            else:
                self._unsent.extend((part, None) for part in parts[:-1])
                self._unsent.append((parts[-1], sent))
                self.unsent_bytes += nbytes
                self.flush()
                return not self.closed
        if sent is not None:
            sent()
        return False

    def ping(self) -> bool:
        """Ask for a sign of life; False where what was sent before has not all left yet."""
        return not self._unsent and self.ready and self.put([framing.ping()])

    def flush(self) -> None:
        """Send what waits, as far as the peer takes it."""
        unsent = self._unsent
        if unsent and self.turn is not None and not self.turn.begin():
            return
        while unsent:
            try:
                count = self._socket.sendmsg([part for part, _ in islice(unsent, _MOST_PARTS)])
            except (BlockingIOError, InterruptedError):
                break
            except (OSError, ValueError):
                self.close()
                return
            self.unsent_bytes -= count
            while unsent and count >= len(unsent[0][0]):
                part, sent = unsent.popleft()
                count -= len(part)
                if sent is not None:
                    sent()
            if count:
                part, sent = unsent[0]
                unsent[0] = memoryview(part)[count:], sent
        if self.turn is not None and not unsent:
            self.turn.end()
        if self._waits != bool(unsent) and self.watch_room is not None:
            self._waits = bool(unsent)
            self.watch_room(self._waits)

    def settle(self) -> None:
        """Send what may have waited for another's message; what has left is told of at once."""
        if not self._waits:
            self.flush()

    def mute(self) -> None:
        """Send nothing more: another's message broke off. The peer is to hang up, or has no need.

        It is not hung up on at once: why that happened may come on another connection, and later.
        """
        self.muted = True
        self._forget_unsent()

    def close(self) -> None:
        """Hang up; what waited is forgotten, and said to have been sent."""
        if self.closed:
            return
        self.closed = True
        # The descriptor stays until nobody watches it any more: its number may come again.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._forget_unsent()

    def _forget_unsent(self) -> None:
        self.unsent_bytes = 0
        while self._unsent:
            sent = self._unsent.popleft()[1]
            if sent is not None:
                sent()

    def part(self) -> socket.socket | None:
        """Send nothing more, and let go of the connection without hanging up on who still sends.

        It is to be read until the peer hangs up (:class:`tapml_rpc.zmtp.parting.Partings`), so that
        what was said last is heard. None where that has not left yet, or could not.
        """
        if self.closed or self.muted or self._unsent:
            return None
        self.closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        return socket.socket(fileno=self._socket.detach())

    def release(self) -> None:
        """Close, and let go of the descriptor and of a session's memory."""
        self.close()
        self._socket.close()
        self._incoming.forget()
        if self.turn is not None:
            self.turn.forget()
            self.turn = None

    def has_more(self) -> bool:
        """Whether something has come that nobody has received, or the end."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def _set_reads(self, reads: bool) -> None:
        self.reads = reads
        if self.watch_reads is not None:
            self.watch_reads()

    def _answer(self, command: bytes) -> None:
        if self.unsent_bytes <= _HEARS_US_BYTES:
            self.put([command])
