"""A connection at the tracker's WebSocket door: TLS, the request, the answer to it.

The ``websockets`` package speaks the handshake, without doing I/O; one thread has all connections.
"""

from __future__ import annotations

import logging
import math
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from tapml_rpc.tracker.nonblocking import receive, send
from tapml_rpc.tracker.records import MAX_MESSAGE_BYTES
from tapml_rpc.tracker.switchboard import Refusal
from tapml_rpc.tracker.websocket_endpoint import WebSocketEndpoint
from tapml_rpc.websocket import admission
from tapml_rpc.websocket.frames import SUBPROTOCOL

if TYPE_CHECKING:
    from tapml_rpc.tracker.flow import Forwarder

OPEN_SECONDS: Final = 5.0
TAKE_SECONDS: Final = 60.0
_LENGTH_BYTES: Final = 4
_STATUS: Final = {
    Refusal.NO_ROOM: HTTPStatus.SERVICE_UNAVAILABLE,
    Refusal.NO_SUCH: HTTPStatus.UNAUTHORIZED,
    Refusal.UNREACHABLE: HTTPStatus.SERVICE_UNAVAILABLE,
}
_LOGGER: Final = logging.getLogger("tapml_rpc.tracker.websocket")
# Faults of hostile or broken peers are answered, and not printed in the tracker's terminal.
_LOGGER.setLevel(logging.CRITICAL)


class Host(Protocol):
    """The owner of the door."""

    @property
    def forwarder(self) -> Forwarder:
        """Runs everything."""

    def requested(self, upgrade: PendingUpgrade, request: Request) -> None:
        """An upgrade has sent its request."""

    def forget(self, upgrade: PendingUpgrade) -> None:
        """One was admitted, or ends."""


class PendingUpgrade:
    """A connection that is not admitted yet; the switchboard's ``Caller`` if it is an endpoint.

    It owns `connection`. `context` is for ``wss``; None for ``ws``. `protocol` goes to its peer
    once admitted. `asked`: its request has come. `taking`: it receives an answer longer than a
    connection has room for.
    """

    def __init__(
        self,
        door: Host,
        connection: socket.socket,
        host: str,
        context: ssl.SSLContext | None,
    ) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.host = host
        self.asked = self.taking = False
        self.deadline = time.monotonic() + OPEN_SECONDS
        self.protocol = ServerProtocol(
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            max_size=MAX_MESSAGE_BYTES + _LENGTH_BYTES,
            logger=_LOGGER,
        )
        self._door = door
        self._response: Response | None = None
        self._left = memoryview(b"")
        self._handshake: Callable[[], None] | None = None
        self.socket = connection
        if context is not None:
            encrypted = context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
            self.socket, self._handshake = encrypted, encrypted.do_handshake
        self._watch(selectors.EVENT_READ)

    def answer(self, refusal: admission.Refusal) -> None:
        """Refuse the request, and end."""
        response = self.protocol.reject(refusal.status, f"{refusal.reason}\n")
        if refusal.retry_after:
            response.headers["Retry-After"] = str(math.ceil(refusal.retry_after))
        with suppress(OSError):
            self._respond(response)
        self.end()

    def give(self, response: Response) -> None:
        """Answer with a long response, as fast as it is taken, and end."""
        self.taking = True
        self.deadline = time.monotonic() + TAKE_SECONDS
        self.protocol.send_response(response)
        self._left = memoryview(b"".join(self.protocol.data_to_send()))
        self._watch(selectors.EVENT_WRITE)

    def accept(self, request: Request) -> bool:
        """Whether it is an upgrade; that is answered by :meth:`come_in`, anything else now."""
        response = self.protocol.accept(request)
        if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            self._response = response
            return True
        with suppress(OSError):
            self._respond(response)
        self.end()
        return False

    def come_in(self) -> None:
        """Complete the upgrade; the caller owns the connection. Raises OSError if it is gone."""
        assert self._response is not None  # noqa: S101 - it was accepted
        self._door.forget(self)
        self._respond(self._response)

    def grant(self) -> WebSocketEndpoint:
        """Complete the upgrade; the connection as an endpoint."""
        self.come_in()
        return WebSocketEndpoint(self.socket, masked=True)

    def refuse(self, why: Refusal | None) -> None:
        """Refuse the request, if it has come, and end."""
        if why is None:
            self.end()
        elif self.socket.fileno() >= 0:
            self.answer(admission.Refusal(_STATUS[why], why.value))

    def end(self) -> None:
        """Close it."""
        self._door.forget(self)
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _watch(self, events: int) -> None:
        self._door.forwarder.forget(self.socket)
        self._door.forwarder.watch(self.socket, events, self._ready)

    def _ready(self, events: int) -> None:
        try:
            if self.taking:
                self._give_on()
                return
            if self._handshake is not None and not self._shake_hands(self._handshake):
                return
            self._read()
        except OSError:
            self.end()
        except BaseException:
            # An internal fault must be seen, and nobody waits because of it.
            self.end()
            raise

    def _shake_hands(self, handshake: Callable[[], None]) -> bool:
        try:
            handshake()
        except ssl.SSLWantReadError:
            self._watch(selectors.EVENT_READ)
            return False
        except ssl.SSLWantWriteError:
            self._watch(selectors.EVENT_WRITE)
            return False
        self._handshake = None
        self._watch(selectors.EVENT_READ)
        return True

    def _read(self) -> None:
        data = receive(self.socket)
        if data is None:
            return
        # One that waits for another has nothing to send yet, and must not take up the thread.
        if not data or self.asked:
            self.end()
            return
        self.protocol.receive_data(data)
        events = self.protocol.events_received()
        early = len(events) > 1 or (events and self.protocol.reader.buffer)
        if early or self.protocol.handshake_exc is not None or self.protocol.eof_sent:
            # No request, or more than one before it was answered.
            self.end()
        elif events and isinstance(events[0], Request):
            self.asked = True
            self._door.requested(self, events[0])

    def _give_on(self) -> None:
        self._left = self._left[send(self.socket, self._left) :]
        if not self._left:
            self.end()

    def _respond(self, response: Response) -> None:
        self.protocol.send_response(response)
        data = b"".join(self.protocol.data_to_send())
        # A new connection has room for so little.
        if send(self.socket, data) != len(data):
            raise ConnectionAbortedError("it does not take the answer to its request")
