"""The server's end of one ZMTP connection; it never waits. A ROUTER to its peer.

It sends short messages alone: payloads go over connections that a worker serves.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tapml_rpc.connection import EndedError
from tapml_rpc.zmtp import framing
from tapml_rpc.zmtp.incoming import Incoming, Message, Place

MOST_UNSENT_BYTES: Final = 40 << 20
# With so much unsent, heartbeats are not answered: the peer has stopped reading, or what is being
# sent shows that we are here.
_HEARS_US_BYTES: Final = 64 << 10
_MOST_AT_ONCE: Final = 256 << 10


def nowhere(packed: bytes, nbytes: int) -> None:
    """Discards every chunk."""


class Peer:
    """An accepted connection; this object owns the socket.

    `opened` is by the monotonic clock. `watch_room` is called with whether :meth:`flush` should be
    called once the peer takes more.
    """

    def __init__(self, connection: socket.socket, opened: float, place: Place = nowhere) -> None:
        self.opened = opened
        self.closed = False
        self.watch_room: Callable[[bool], None] | None = None
        self._waits = False
        self._socket = connection
        connection.setblocking(False)
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Finds a host that has vanished; a client that is merely stopped may come back.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._incoming = Incoming(connection, b"ROUTER", place, self._answer)
        self._unsent = bytearray()
        self.put(framing.GREETING + framing.ready(b"ROUTER"))

    def fileno(self) -> int:
        """What a selector takes; -1 once released."""
        return self._socket.fileno()

    @property
    def ready(self) -> bool:
        """Whether the peer has finished its handshake."""
        return self._incoming.ready

    @property
    def routing_id(self) -> bytes:
        """What the peer calls itself, once it is ready; it proves nothing."""
        return self._incoming.routing_id

    @property
    def received_bytes(self) -> int:
        """All received bytes: any increase is a sign of life."""
        return self._incoming.received_bytes

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the peer has not taken yet."""
        return len(self._unsent)

    @property
    def pending(self) -> bool:
        """Whether :meth:`next` may have something even if nothing more comes."""
        return self._incoming.pending

    @property
    def holds(self) -> bool:
        """Whether it keeps memory: an incomplete message, or what the peer has not taken."""
        return self._incoming.halfway or bool(self._unsent)

    def bound_headers(self, nbytes: int) -> None:
        """Keep no longer header from now on; see :class:`Incoming`."""
        self._incoming.most_header_bytes = nbytes

    def next(self) -> Message | None:
        """The next message; None if it is incomplete, or others should have their turn.

        Raises EndedError or ProtocolError if the peer has gone, or is to be disconnected.
        """
        if self.closed:
            raise EndedError("closed")
        return self._incoming.next()

    def begun(self, packed: bytes, chunk_bytes: int | None) -> bytes:
        """All that has come since a message began, as it came, to be parsed elsewhere.

        `packed` is its header; `chunk_bytes` the size of its chunk, of which nothing was parsed,
        None if it has none.
        """
        head = framing.frame_head(len(packed), 0 if chunk_bytes is None else framing.MORE)
        received = head + packed
        if chunk_bytes is not None:
            more = framing.MORE if self._incoming.more else 0
            received += framing.frame_head(chunk_bytes, more)
        return received + self._incoming.unparsed()

    def give_away(self) -> socket.socket | None:
        """Give the connection to another process; None if something waits to be sent."""
        if self.closed or self._unsent:
            return None
        self.closed = True
        return socket.socket(fileno=self._socket.detach())

    def send(self, packed: bytes) -> bool:
        """Send a message without a chunk; False if the peer takes nothing more."""
        return self.put(framing.frame_head(len(packed)) + packed)

    def put(self, sent: bytes) -> bool:
        """Send raw bytes as far as the peer takes them; the rest waits."""
        if not self.closed:
            if len(self._unsent) + len(sent) > MOST_UNSENT_BYTES:
                self.close()
            else:
                self._unsent += sent
                self.flush()
        return not self.closed

    def ping(self) -> bool:
        """Ask for a sign of life; False if earlier bytes have not all left yet."""
        return not self._unsent and self.ready and self.put(framing.ping())

    def flush(self) -> None:
        """Send what waits, as far as the peer takes it."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent[:_MOST_AT_ONCE])]
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, ValueError):
            self.close()
            return
        if self._waits != bool(self._unsent) and self.watch_room is not None:
            self._waits = bool(self._unsent)
            self.watch_room(self._waits)

    def close(self) -> None:
        """Disconnect; what waited is dropped."""
        if self.closed:
            return
        self.closed = True
        # The descriptor stays until nobody watches it any more: its number may come again.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._unsent.clear()

    def part(self) -> socket.socket | None:
        """Send nothing more, and give the connection away unclosed: its peer may still be sending.

        It must be read until the peer closes it (:class:`tapml_rpc.zmtp.parting.Partings`), so that
        the last message is read. None if that has not left yet, or could not.
        """
        connection = self.give_away()
        with suppress(OSError):
            if connection is not None:
                connection.shutdown(socket.SHUT_WR)
        return connection

    def release(self) -> None:
        """Close, and release the descriptor."""
        self.close()
        self._socket.close()
        self._incoming.forget()

    def _answer(self, command: bytes) -> None:
        if self.unsent_bytes <= _HEARS_US_BYTES:
            self.put(command)
