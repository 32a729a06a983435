"""The tracker over WebSocket: one port for devices, clients, and what is relayed between them.

For devices that have no ZeroMQ, and for browsers, which can only go out. ``/tracker`` takes the
messages that the ROUTER socket takes; ``/control`` and ``/data`` are a lent device's two
connections, opened with the lease's token as any server's are with its own; ``/leg`` is where the
device comes for a client that waits; ``/`` is the page that makes a browser a device. One thread,
and nothing in it waits for anybody.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
import ssl
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import Final

from websockets.http11 import Request

from tapml_rpc.security.bind import bracketed
from tapml_rpc.tracker.doorstep import Doorstep
from tapml_rpc.tracker.flow import Forwarder
from tapml_rpc.tracker.records import LEG_PATH, TRACKER_PATH
from tapml_rpc.tracker.switchboard import Dial, Refusal, Switchboard
from tapml_rpc.tracker.web_page import page_response
from tapml_rpc.tracker.websocket_peer import WebSocketPeer
from tapml_rpc.tracker.websocket_visitor import Visitor
from tapml_rpc.websocket import admission
from tapml_rpc.websocket.admission import LOOPBACK_ORIGINS, Admission, Guard
from tapml_rpc.websocket.frames import CONTROL_PATH, DATA_PATH
from tapml_targets.errors import SetupError

KEY_PREFIX: Final = b"w"
MAX_PEERS: Final = 1024
MAX_VISITORS: Final = 256
PING_SECONDS: Final = 1.0
_STEP_SECONDS: Final = 0.25
_STOPPED_SECONDS: Final = 1.0
_KEY_BYTES: Final = 16
_NORMAL: Final = 1000
_GOING_AWAY: Final = 1001

Heard = Callable[[WebSocketPeer, bytes, bytes], None]
"""Takes the peer, its key and a message, on the door's thread."""
Gone = Callable[[bytes, str], None]
"""Takes the key of a peer that has gone, and why, on the door's thread."""


class _Secrets:
    """The guard of the relay's connections: who knows a secret of the switchboard is let through.

    The identity it gives is the secret itself, for the door alone.
    """

    def __init__(self, board: Switchboard) -> None:
        self._board = board

    def check(self, token: str, address: str, *, opens: bool = True) -> str:
        if not self._board.knows(token):
            raise SetupError(Refusal.NO_SUCH.value)
        return token


class WebSocketDoor:
    """Listens, lets in, joins and forwards, on a thread of its own.

    Parameters
    ----------
    host, port
        Where to listen, as :func:`tapml_rpc.security.bind.check_bind` gives it.
    heard, gone
        Take messages, and the ends of connections.
    dial
        Called with lease id, stream and role when a device shall come.
    guard
        Who knows the tokens of devices and clients; None on loopback alone.
    context
        For ``wss``; None for ``ws``.
    origins
        Pages that may connect, by their Origin, beside those of this machine.
    silence_seconds
        A peer that gives no sign of life for so long, not even the pong its WebSocket owes, is
        gone.

    Raises
    ------
    SetupError
        If the address cannot be used.

    Attributes
    ----------
    address
        ``ws://host:port`` or ``wss://host:port``.
    port
        Where it listens.
    forwarder
        Runs everything here.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        heard: Heard,
        gone: Gone,
        dial: Dial,
        guard: Guard | None = None,
        context: ssl.SSLContext | None = None,
        origins: Sequence[str | re.Pattern[str]] = (),
        silence_seconds: float = 10.0,
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, port), family=family, backlog=512)
        except OSError as error:
            raise SetupError(
                f"cannot listen on {host} port {port}: {error.strerror or error}; if another "
                "tracker is there use that, or give another port to --websocket"
            ) from None
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        scheme = "ws" if context is None else "wss"
        self.address = f"{scheme}://{bracketed(host)}:{self.port}"
        self.forwarder = Forwarder()
        self._heard, self._gone = heard, gone
        self._context = context
        self._silence_seconds = silence_seconds
        self._board = Switchboard(self.forwarder, dial)
        allowed = (*LOOPBACK_ORIGINS, *origins)
        paths = (TRACKER_PATH, CONTROL_PATH, DATA_PATH, LEG_PATH)
        page = "http" if context is None else "https"
        self._peers_admission = Admission(guard, allowed, paths, page)
        self._legs_admission = Admission(_Secrets(self._board), allowed, paths, page)
        self._visitors: dict[Visitor, None] = {}
        self._peers: dict[bytes, WebSocketPeer] = {}
        self._checked = 0
        self._checker = ThreadPoolExecutor(1, "tapml-door-tokens")
        self._pinged = self._looked = time.monotonic()
        self._stop = threading.Event()
        self._doorstep = Doorstep(
            self.forwarder, self._listener, lambda taken, address: self._greet(taken, address[0])
        )
        self._thread = threading.Thread(target=self._run, name="tapml-door", daemon=True)
        self._thread.start()

    def send(self, key: bytes, message: bytes) -> None:
        """Send to a peer; one that is gone, or reads nothing, is reported. From any thread."""
        self.forwarder.post(partial(self._send, key, message))

    def drop(self, key: bytes, why: str) -> None:
        """End a peer's connection. From any thread."""
        self.forwarder.post(partial(self._drop, key, why))

    def allow(self, lease_id: str, token: str) -> None:
        """Let through who knows a lease's token. From any thread."""
        self.forwarder.post(partial(self._board.allow, lease_id, token))

    def cut(self, lease_id: str, token: str) -> None:
        """End what goes through a lease, and let nothing more through it. From any thread."""
        self.forwarder.post(partial(self._board.cut, lease_id, token))

    def close(self) -> None:
        """End everything."""
        self._stop.set()
        self.forwarder.post(lambda: None)
        self._thread.join(timeout=2)

    def requested(self, visitor: Visitor, request: Request) -> None:
        """A visitor has said what it wants; on the door's thread."""
        leg = request.path in (CONTROL_PATH, DATA_PATH, LEG_PATH)
        page = None if "Upgrade" in request.headers else page_response(request.path)
        if page is not None:
            visitor.give(page)
        elif leg:
            self._admit(visitor, request, self._legs_admission.check(request, visitor.host))
        elif request.path != TRACKER_PATH or self._has_room(visitor, request):
            # A token may be good once: all that can be refused without it came before it.
            self._checked += 1
            self._checker.submit(self._check, visitor, request)

    def forget(self, visitor: Visitor) -> None:
        """One has come in, or ends; on the door's thread."""
        self._visitors.pop(visitor, None)
        self._board.gone(visitor)
        self.forwarder.forget(visitor.socket)

    def _check(self, visitor: Visitor, request: Request) -> None:
        """On a thread of its own: a list of tokens is a file, with a lock that may be held."""
        admitted: admission.Refusal | str
        try:
            admitted = self._peers_admission.check(request, visitor.host)
        except Exception:
            traceback.print_exc(file=sys.stderr)
            reason = "the tracker cannot check a token now"
            admitted = admission.Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, reason)
        self.forwarder.post(partial(self._after_check, visitor, request, admitted))

    def _after_check(
        self, visitor: Visitor, request: Request, admitted: admission.Refusal | str
    ) -> None:
        self._checked -= 1
        # It may have left meanwhile.
        if visitor in self._visitors:
            self._admit(visitor, request, admitted)

    def _admit(self, visitor: Visitor, request: Request, admitted: admission.Refusal | str) -> None:
        if isinstance(admitted, admission.Refusal):
            visitor.answer(admitted)
        elif request.path == TRACKER_PATH:
            self._let_in(visitor, admitted)
        elif not visitor.accept(request):
            return
        elif request.path == LEG_PATH:
            self._board.answer(visitor, admitted)
        else:
            self._board.call(visitor, admitted, request.path[1:])

    def _has_room(self, visitor: Visitor, request: Request) -> bool:
        """Whether one more peer can come in, by an upgrade; who cannot is told."""
        if len(self._peers) + self._checked >= MAX_PEERS:
            reason = f"all {MAX_PEERS} connections of this tracker are taken"
            visitor.answer(admission.Refusal(HTTPStatus.SERVICE_UNAVAILABLE, reason))
            return False
        return visitor.accept(request)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.forwarder.step(_STEP_SECONDS)
                self._look(time.monotonic())
            except Exception:
                # A fault of ours must not end every other connection, and must be seen.
                traceback.print_exc(file=sys.stderr)
        for visitor in list(self._visitors):
            visitor.end()
        for peer in list(self._peers.values()):
            peer.close(_GOING_AWAY, "the tracker ends")
        self._checker.shutdown(wait=False, cancel_futures=True)
        self.forwarder.close()
        self._listener.close()

    def _look(self, now: float) -> None:
        """What time alone brings about."""
        if now - self._looked > _STOPPED_SECONDS:
            # The tracker was stopped: that is nobody's silence.
            for peer in self._peers.values():
                peer.last_heard += now - self._looked
        self._looked = now
        self._doorstep.look()
        self._board.refuse_late()
        for visitor in [v for v in self._visitors if now > v.deadline]:
            if visitor.taking or not visitor.asked:
                visitor.end()
        if now - self._pinged > PING_SECONDS:
            self._pinged = now
            for peer in list(self._peers.values()):
                if now - peer.last_heard > self._silence_seconds:
                    peer.close(_NORMAL, f"silent for {self._silence_seconds:g} s")
                else:
                    peer.ping()

    def _greet(self, connection: socket.socket, number: str) -> None:
        if len(self._visitors) >= MAX_VISITORS:
            # Who means well says what it wants at once: the one that has said nothing longest goes.
            idle = next((v for v in self._visitors if v.taking or not v.asked), None)
            if idle is None:
                connection.close()
                return
            idle.end()
        try:
            self._visitors[Visitor(self, connection, _host(number), self._context)] = None
        except OSError:
            connection.close()

    def _let_in(self, visitor: Visitor, identity: str) -> None:
        key = KEY_PREFIX + secrets.token_bytes(_KEY_BYTES)

        def ended(why: str) -> None:
            self._peers.pop(key, None)
            self._gone(key, why)

        try:
            peer = WebSocketPeer(
                visitor,
                self.forwarder,
                identity,
                lambda message: self._heard(peer, key, message),
                ended,
            )
        except OSError:
            visitor.end()
            return
        self._peers[key] = peer

    def _send(self, key: bytes, message: bytes) -> None:
        peer = self._peers.get(key)
        if peer is not None:
            peer.send(message)

    def _drop(self, key: bytes, why: str) -> None:
        peer = self._peers.get(key)
        if peer is not None:
            peer.close(_NORMAL, why)


def _host(number: str) -> str:
    address = ipaddress.ip_address(number)
    return str(getattr(address, "ipv4_mapped", None) or address)
