"""The client's end of one ZMTP connection: no thread, no copy of a payload. A DEALER to its peer.

Used by one thread at a time, except :meth:`Stream.beat`.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import suppress
from typing import Final

from tapml_rpc.transport import Check, EndedError
from tapml_rpc.zmtp import framing
from tapml_rpc.zmtp.incoming import Incoming, Place
from tapml_targets.errors import ProtocolError, SetupError

_POLL_MILLISECONDS: Final = 50
_CLOSE_SECONDS: Final = 0.2
# The answer to a heartbeat; sent unasked it shows that the client is alive.
_BEAT: Final = framing.command(b"PONG")


class Stream:
    """Messages over a connection: a :class:`tapml_rpc.transport.DataConnection`.

    It owns the connected socket. The peer must finish its handshake by `deadline`, on the monotonic
    clock, else SetupError is raised; None for a worker of our own, which makes no handshake. Chunks
    go to the memory of `place`, a :data:`tapml_rpc.zmtp.incoming.Place`.
    """

    memory_is_reused = False

    def __init__(self, connection: socket.socket, deadline: float | None, place: Place) -> None:
        # Two marks, because one thread may send a beat while another receives.
        self._half_sent = self._half_received = False
        self._socket = connection
        connection.setblocking(False)
        self._sending = threading.Lock()
        self._poll_in, self._poll_out = select.poll(), select.poll()
        self._poll_in.register(connection, select.POLLIN)
        self._poll_out.register(connection, select.POLLOUT)
        self._incoming = Incoming(connection, b"DEALER", place, self._answer)
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

    @property
    def torn(self) -> bool:
        """Whether an exception such as Ctrl-C may have left a frame half sent or counted."""
        return self._half_sent or self._half_received

    def send(
        self, packed: bytes, chunk: bytes | memoryview = b"", check: Check | None = None
    ) -> None:
        """Send one message; see :class:`tapml_rpc.transport.DataConnection`."""
        if not len(chunk):
            self._send([framing.frame_head(len(packed)) + packed], check)
            return
        head = framing.frame_head(len(packed), framing.MORE)
        self._send([b"".join((head, packed, framing.frame_head(len(chunk)))), chunk], check)

    def receive(self, wait_milliseconds: int) -> tuple[bytes, memoryview] | None:
        """The next message's header and chunk; None if it is not complete in time."""
        self._half_received = True
        while (message := self._incoming.next()) is None:
            # Everything received is counted: an interrupt here does no harm.
            self._half_received = False
            if not wait_milliseconds or not self._poll_in.poll(wait_milliseconds):
                return None
            self._half_received = True
        if message[2] > 2:
            raise ProtocolError(f"the server sent a message of {message[2]} frames")
        self._half_received = False
        return message[:2]

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
        deadline = time.monotonic() + _CLOSE_SECONDS

        def check() -> None:
            if time.monotonic() > deadline:
                raise EndedError("the peer takes nothing")

        with suppress(EndedError):
            self.send(packed, check=check)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self.abort()

    def abort(self) -> None:
        """Close without a goodbye."""
        self._socket.close()
        # The memory of a read that has come only in part is not kept.
        self._incoming.forget()

    def _shake_hands(self, deadline: float) -> None:
        self._send([framing.GREETING + framing.ready(b"DEALER")], None)
        while not self._incoming.ready:
            if self._incoming.next() is not None:
                raise ProtocolError("the server sent a message before it was asked")
            left = deadline - time.monotonic()
            if left <= 0:
                raise ProtocolError("it has not finished its ZMTP handshake in time")
            if not self._incoming.ready:
                self._poll_in.poll(min(1000 * left, _POLL_MILLISECONDS))

    def _answer(self, command: bytes) -> None:
        self._send([command], None)

    def _send(self, parts: list[bytes | memoryview], check: Check | None) -> None:
        with self._sending:
            half, self._half_sent = self._half_sent, True
            self._send_all(parts, check)
            self._half_sent = half

    def _send_all(self, parts: list[bytes | memoryview], check: Check | None) -> None:
        while parts:
            try:
                sent = self._socket.sendmsg(parts)
            except (BlockingIOError, InterruptedError):
                self._poll_out.poll(_POLL_MILLISECONDS)
                if check is not None:
                    check()
                continue
            except (OSError, ValueError) as error:
                raise EndedError(f"the connection dropped: {error}") from None
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if sent:
                parts[0] = memoryview(parts[0])[sent:]
