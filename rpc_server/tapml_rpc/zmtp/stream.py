"""The client's end of one ZMTP connection: a DEALER to its peer.

Used by one thread at a time, except :meth:`Stream.beat`.
"""

from __future__ import annotations

import socket
import threading
import time
from functools import partial
from typing import Final

from tapml_rpc.stream import SocketStream
from tapml_rpc.transport import Check, EndedError
from tapml_rpc.zmtp import framing
from tapml_rpc.zmtp.incoming import Incoming, Place
from tapml_targets.errors import ProtocolError, SetupError

_POLL_MILLISECONDS: Final = 50
# The answer to a heartbeat; sent unasked it shows that the client is alive.
_BEAT: Final = framing.command(b"PONG")


class Stream(SocketStream):
    """Messages over a connection: a :class:`tapml_rpc.transport.DataConnection`.

    The peer must finish its handshake by `deadline`, on the monotonic clock, else SetupError is
    raised; None for a worker of our own, which makes no handshake. Chunks go to the memory of
    `place`, a :data:`tapml_rpc.zmtp.incoming.Place`.
    """

    memory_is_reused = False

    def __init__(self, connection: socket.socket, deadline: float | None, place: Place) -> None:
        super().__init__(connection)
        self._sending = threading.Lock()
        self._incoming: Incoming = Incoming(connection, b"DEALER", place, self._answer)
        if deadline is None:
            self._incoming.resume(b"")
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._shake_hands(deadline)
        except (EndedError, ProtocolError) as error:
            self.abort()
            raise SetupError(f"the server's data connection failed: {error}") from None
        except BaseException:
            self.abort()
            raise

    def send(
        self, packed: bytes, chunk: bytes | memoryview = b"", check: Check | None = None
    ) -> None:
        """Send one message; see :class:`tapml_rpc.transport.DataConnection`."""
        self._send(framing.message_parts(packed, (chunk,)), check)

    def receive(self, wait_milliseconds: int) -> tuple[bytes, memoryview] | None:
        """The next message's header and chunk; None if it is not complete in time."""
        message = self._next(wait_milliseconds)
        if message is None:
            return None
        if message[2] > 2:
            raise ProtocolError(f"the server sent a message of {message[2]} frames")
        self._half_received = False
        header, chunk, _ = message
        return header, chunk

    def beat(self) -> None:
        """Send a sign of life unless something is being sent; from any thread."""
        if not self._sending.acquire(blocking=False):
            return
        try:
            # Within a frame it would be taken for a piece of that.
            if not self._half_sent:
                self._half_sent = self._socket.send(_BEAT) < len(_BEAT)
        except OSError:
            # The next send or receive finds out.
            pass
        finally:
            self._sending.release()

    def close(self, packed: bytes) -> None:
        """Send a last message if the peer takes it soon, and close. Never raises."""
        self._close(partial(self.send, packed, b""), socket.SHUT_WR)

    def _shake_hands(self, deadline: float) -> None:
        self._send([memoryview(framing.GREETING + framing.ready(b"DEALER"))], None)
        while not self._incoming.ready:
            if self._incoming.next() is not None:
                raise ProtocolError("the server sent a message before it was asked")
            left = deadline - time.monotonic()
            if left <= 0:
                raise ProtocolError("it has not finished its ZMTP handshake in time")
            if not self._incoming.ready:
                self._poll_in.poll(min(1000 * left, _POLL_MILLISECONDS))

    def _answer(self, command: bytes) -> None:
        self._send([memoryview(command)], None)

    def _send(self, parts: list[memoryview], check: Check | None) -> None:
        with self._sending:
            half, self._half_sent = self._half_sent, True
            self._send_all(parts, check)
            self._half_sent = half
