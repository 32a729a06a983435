"""A device or a client of the tracker at the other end of a WebSocket."""

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

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from tapml_rpc.tracker.flow import Forwarder, receive, send
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


MOST_UNSENT_BYTES: Final = 4 << 20
"""What may wait for a peer that reads slowly: a few pages of a list of devices."""


class WebSocketPeer:
    """Messages to and from one peer, on the forwarder's thread.

    It owns the accepted `upgrade`. `identity` is a part of the hash of its token, or ``loopback``.
    `heard` takes each message; `ended` is called once, with the reason, when the connection is
    over. `last_heard` is on the monotonic clock. Raises OSError if it is gone already.
    """

    def __init__(
        self,
        upgrade: PendingUpgrade,
        forwarder: Forwarder,
        identity: str,
        heard: Callable[[bytes], None],
        ended: Callable[[str], None],
    ) -> None:
        self.identity = identity
        self.host = upgrade.host
        self.last_heard = time.monotonic()
        self._forwarder = forwarder
        self._protocol = upgrade.protocol
        self._socket = upgrade.socket
        self._heard = heard
        self._ended: Callable[[str], None] | None = ended
        self._message = bytearray()
        self._unsent = bytearray()
        self._last = False
        upgrade.come_in()
        self._watched = selectors.EVENT_READ
        forwarder.watch(self._socket, self._watched, self._ready)

    def send(self, message: bytes) -> None:
        """Send one message, or end the connection of a peer that reads none."""
        if self._ended is not None and not self._last:
            self._protocol.send_binary(message)
            self._flush()

    def ping(self) -> None:
        """Ask for a sign of life, which every WebSocket gives automatically."""
        if self._ended is not None and not self._last:
            self._protocol.send_ping(b"")
            self._flush()

    def close(self, code: int, why: str) -> None:
        """Send a goodbye, and end the connection whether it is taken or not."""
        if self._ended is None:
            return
        if not self._last:
            self._protocol.send_close(code, why[:100])
            self._flush()
        self._end(why)

    def _ready(self, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                self._read()
            if self._ended is not None and events & selectors.EVENT_WRITE:
                self._flush()
        except OSError as error:
            self._end(f"its connection dropped: {error}")

    def _read(self) -> None:
        data = receive(self._socket)
        if data is None:
            return
        if not data:
            self._end("its connection dropped")
            return
        self.last_heard = time.monotonic()
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take(event)
            if self._ended is None:
                # The receiver of that closed the connection: the rest is discarded.
                return
        self._flush()

    def _take(self, frame: Frame) -> None:
        if frame.opcode is Opcode.TEXT:
            self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "messages are binary")
        elif frame.opcode in (Opcode.BINARY, Opcode.CONT):
            self._message += frame.data
            if frame.fin:
                message = bytes(self._message)
                self._message.clear()
                self._heard(message)

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            # The package's way to say that nothing comes after.
            self._last = self._last or not data
            self._unsent += data
        try:
            while self._unsent and (taken := send(self._socket, self._unsent)):
                del self._unsent[:taken]
        except OSError as error:
            self._end(f"its connection dropped: {error}")
            return
        if len(self._unsent) > MOST_UNSENT_BYTES:
            self._end("it reads none of its messages")
        elif self._last and not self._unsent:
            self._end("it closed its connection")
        else:
            self._settle()

    def _settle(self) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        if events != self._watched:
            self._watched = events
            self._forwarder.forget(self._socket)
            self._forwarder.watch(self._socket, events, self._ready)

    def _end(self, why: str) -> None:
        if self._ended is None:
            return
        ended, self._ended = self._ended, None
        self._forwarder.forget(self._socket)
        with suppress(OSError):
            # The last message is read before the end of the connection.
            self._socket.shutdown(socket.SHUT_WR)
        self._socket.close()
        ended(why)
