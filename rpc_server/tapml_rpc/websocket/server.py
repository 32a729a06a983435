"""A WebSocket server, of a device or a tracker: who comes in, on one thread where nothing waits."""

from __future__ import annotations

import math
import os
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from tapml_rpc.flow import Acceptor, Forwarder, receive, send
from tapml_rpc.host_names import numeric
from tapml_rpc.standard_error import print_fault
from tapml_rpc.websocket.admission import Admission, Refusal
from tapml_rpc.websocket.connection import GOING_AWAY, Heard, ServerConnection
from tapml_rpc.websocket.frames import LOGGER, SUBPROTOCOL
from tapml_targets.errors import SetupError

MAX_UPGRADES: Final = 256
OPEN_SECONDS: Final = 5.0
_TAKE_SECONDS: Final = 60.0
_END_SECONDS: Final = 1.0
_CHECKERS: Final = 8
_BACKLOG: Final = 512


def listen(host: str, port: int, advice: str) -> socket.socket:
    """A listening socket, non-blocking; raises SetupError with `advice` if that fails."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        number = getattr(error, "errno", None)
        # Those of name resolution are negative, and have a text of their own.
        named = getattr(error, "strerror", None) or error
        why = os.strerror(number) if number and number > 0 else named
        raise SetupError(f"cannot listen on {host} port {port}: {why}; {advice}") from error
    listener.setblocking(False)
    return listener


class PendingUpgrade:
    """A connection that is not admitted yet, which this object owns until then.

    `context` is for ``wss``; None for ``ws``. `asked`: its request has come. `taking`: it receives
    an answer longer than a connection has room for. `response` is what :meth:`come_in` answers.
    """

    def __init__(
        self,
        server: WebSocketServer,
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
        self.socket = connection
        self._protocol = ServerProtocol(subprotocols=[Subprotocol(SUBPROTOCOL)], logger=LOGGER)
        self._server = server
        self.response: Response | None = None
        self._left = memoryview(b"")
        self._handshake: Callable[[], None] | None = None
        if context is not None:
            encrypted = context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
            self.socket, self._handshake = encrypted, encrypted.do_handshake
        self._watch(selectors.EVENT_READ)

    def answer(self, refusal: Refusal) -> None:
        """Refuse the request, and end."""
        response = self._protocol.reject(refusal.status, f"{refusal.reason}\n")
        if refusal.retry_after:
            response.headers["Retry-After"] = str(math.ceil(refusal.retry_after))
        with suppress(OSError):
            self._respond(response)
        self.end()

    def give(self, response: Response) -> None:
        """Answer with a long response, as fast as it is taken, and end."""
        self.taking = True
        self.deadline = time.monotonic() + _TAKE_SECONDS
        self._protocol.send_response(response)
        self._left = memoryview(b"".join(self._protocol.data_to_send()))
        self._watch(selectors.EVENT_WRITE)

    def accept(self, request: Request) -> bool:
        """Whether it is an upgrade; that is answered by :meth:`come_in`, anything else now."""
        response = self._protocol.accept(request)
        if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            self.response = response
            return True
        with suppress(OSError):
            self._respond(response)
        self.end()
        return False

    def come_in(self) -> socket.socket:
        """Complete the upgrade; the caller owns the connection. Raises OSError if it is gone."""
        assert self.response is not None  # noqa: S101 - it was accepted
        self._server.forget(self)
        self._respond(self.response)
        return self.socket

    def end(self) -> None:
        """Close it."""
        self._server.forget(self)
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _watch(self, events: int) -> None:
        self._server.forwarder.rewatch(self.socket, events, self._ready)

    def _ready(self, events: int) -> None:
        try:
            if self.taking:
                self._left = self._left[send(self.socket, self._left) :]
                if not self._left:
                    self.end()
                return
            if self._handshake is None or self._shake_hands(self._handshake):
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
        self._protocol.receive_data(data)
        events = self._protocol.events_received()
        early = len(events) > 1 or (events and self._protocol.reader.buffer)
        if early or self._protocol.handshake_exc is not None or self._protocol.eof_sent:
            # No request, or more than one before it was answered.
            self.end()
        elif events and isinstance(events[0], Request):
            self.asked = True
            self._server.requested(self, events[0])

    def _respond(self, response: Response) -> None:
        # A new connection has room for so little.
        data = response.serialize()
        if send(self.socket, data) != len(data):
            raise ConnectionAbortedError("it does not take the answer to its request")


class WebSocketServer:
    """Listens, admits and serves on the thread of `forwarder`, whose owner calls :meth:`look`.

    A subclass says in :meth:`enter` what an admitted connection is for, and may take other requests
    in :meth:`requested`. `most` connections are served at a time.
    """

    def __init__(self, forwarder: Forwarder, admission: Admission, most: int) -> None:
        self.forwarder = forwarder
        self.most = most
        self.connections: set[ServerConnection] = set()
        self._admission = admission
        self._upgrades: dict[PendingUpgrade, None] = {}
        # Those whose token other threads check: a list of tokens is a file, whose lock may keep one
        # of them waiting.
        self._checked = 0
        self._checker = ThreadPoolExecutor(_CHECKERS, "tapml-tokens")
        self._acceptors: list[Acceptor] = []

    def serve(
        self,
        listener: socket.socket,
        context: ssl.SSLContext | None = None,
        kind: type[PendingUpgrade] = PendingUpgrade,
    ) -> None:
        """Accept connections to a listening socket, of a `kind`; `context` is for ``wss``."""

        def greet(connection: socket.socket, address: Any) -> None:
            host = str(numeric(str(address[0]).partition("%")[0]))
            with suppress(OSError):  # of one that has gone again
                if self._has_room_at_the_door():
                    self._upgrades[kind(self, connection, host, context)] = None
                    return
            connection.close()

        self._acceptors.append(Acceptor(self.forwarder, listener, greet))

    def requested(self, upgrade: PendingUpgrade, request: Request) -> None:
        """A request has come: refuse it, or have its token checked."""
        # A token may be valid once: everything that can be refused without it comes first.
        refusal = self._admission.refuses(request)
        if refusal is not None:
            upgrade.answer(refusal)
        elif upgrade.accept(request):
            if len(self.connections) + self._checked >= self.most:
                reason = f"all {self.most} connections of this server are taken"
                upgrade.answer(Refusal(HTTPStatus.SERVICE_UNAVAILABLE, reason))
            elif self._admission.guarded:
                self._checked += 1
                self._checker.submit(self._check, upgrade, request)
            else:
                self.enter(upgrade, request, "loopback")

    def enter(self, upgrade: PendingUpgrade, request: Request, identity: str) -> None:
        """Serve an admitted connection, by :meth:`connect`."""
        raise NotImplementedError

    def connect(
        self,
        upgrade: PendingUpgrade,
        heard: Heard,
        ended: Callable[[str], None],
        *,
        most_bytes: int,
        most_unsent: int,
    ) -> ServerConnection:
        """Complete an upgrade; see :class:`ServerConnection`. Raises OSError if it is gone."""
        connection = ServerConnection(
            upgrade.come_in(),
            self.forwarder,
            heard,
            ended,
            most_bytes=most_bytes,
            most_unsent=most_unsent,
        )
        self.connections.add(connection)
        return connection

    def look(self, now: float) -> None:
        """Look at the clock; call it a few times a second."""
        for acceptor in self._acceptors:
            acceptor.look(now)
        for upgrade in [each for each in self._upgrades if now > each.deadline]:
            if upgrade.taking or not upgrade.asked:
                upgrade.end()
        for connection in list(self.connections):
            connection.look(now)
        self.connections = {each for each in self.connections if not each.gone}

    def forget(self, upgrade: PendingUpgrade) -> None:
        """One was admitted, or ends."""
        self._upgrades.pop(upgrade, None)
        self.forwarder.forget(upgrade.socket)

    def close(self, why: str) -> None:
        """End all connections, each with a goodbye that it takes soon, and stop listening."""
        for acceptor in self._acceptors:
            acceptor.close()
        for upgrade in list(self._upgrades):
            upgrade.end()
        for connection in self.connections:
            connection.close(GOING_AWAY, why)
        deadline = time.monotonic() + _END_SECONDS
        while self.connections and (left := deadline - time.monotonic()) > 0:
            self.forwarder.step(left)
            self.connections = {each for each in self.connections if not each.gone}
        self._checker.shutdown(wait=False, cancel_futures=True)

    def _check(self, upgrade: PendingUpgrade, request: Request) -> None:
        admitted: Refusal | str
        try:
            admitted = self._admission.admit(request, upgrade.host)
        except Exception as error:
            print_fault(error)
            reason = "the server cannot check a token now"
            admitted = Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, reason)
        self.forwarder.post(partial(self._after_check, upgrade, request, admitted))

    def _after_check(
        self, upgrade: PendingUpgrade, request: Request, admitted: Refusal | str
    ) -> None:
        self._checked -= 1
        if upgrade not in self._upgrades:
            # It has left meanwhile.
            return
        if isinstance(admitted, Refusal):
            upgrade.answer(admitted)
        else:
            self.enter(upgrade, request, admitted)

    def _has_room_at_the_door(self) -> bool:
        if len(self._upgrades) < MAX_UPGRADES:
            return True
        # A proper client makes its request at once: the one that has been silent longest goes.
        idle = next((each for each in self._upgrades if each.taking or not each.asked), None)
        if idle is not None:
            idle.end()
        return idle is not None
