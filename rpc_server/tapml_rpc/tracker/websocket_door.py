"""The tracker over WebSocket: one port for devices, clients, and relayed connections.

For devices without ZeroMQ, and for browsers, which can only connect out. ``/tracker`` takes the
messages that the ROUTER socket takes; ``/control`` and ``/data`` are a lent device's two
connections, opened with the lease's token as any server's are with its own; on ``/leg`` the device
connects for a client that waits; ``/`` is the page that makes a browser a device. One thread, in
which nothing waits.
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
from tapml_rpc.tracker.flow import Forwarder
from tapml_rpc.tracker.records import LEG_PATH, TRACKER_PATH
from tapml_rpc.tracker.relay import Acceptor
from tapml_rpc.tracker.switchboard import Dial, Refusal, Switchboard
from tapml_rpc.tracker.web_page import page_response
from tapml_rpc.tracker.websocket_peer import PendingUpgrade, WebSocketPeer
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
    """The guard of the relay's connections: admits the switchboard's secrets.

    The identity it gives is the secret itself, which only the door uses.
    """

    def __init__(self, board: Switchboard) -> None:
        self._board = board

    def check(self, token: str, address: str, *, opens: bool = True) -> str:
        if not self._board.knows(token):
            raise SetupError(Refusal.NO_SUCH.value)
        return token


class WebSocketDoor:
    """Listens, admits, joins and forwards, on its own thread.

    `host` and `port` come from :func:`tapml_rpc.security.bind.check_bind`. `heard` and `gone` take
    messages and the ends of connections; `dial` is called with lease id, stream and role when a
    device should connect. `guard` checks tokens; None on loopback only. `context` is for ``wss``.
    Pages with an Origin in `origins` may connect, beside those of this machine. A peer without a
    sign of life for `silence_seconds`, not even the pong its WebSocket owes, is gone. Raises
    SetupError if the address cannot be used.
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
        self._upgrades: dict[PendingUpgrade, None] = {}
        self._peers: dict[bytes, WebSocketPeer] = {}
        self._checked = 0
        self._checker = ThreadPoolExecutor(1, "tapml-door-tokens")
        self._pinged = self._looked = time.monotonic()
        self._stop = threading.Event()
        self._acceptor = Acceptor(
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
        """Admit a lease's token. From any thread."""
        self.forwarder.post(partial(self._board.allow, lease_id, token))

    def cut(self, lease_id: str, token: str) -> None:
        """Cut the connections of a lease, and admit no more. From any thread."""
        self.forwarder.post(partial(self._board.cut, lease_id, token))

    def close(self) -> None:
        """End everything."""
        self._stop.set()
        self.forwarder.post(lambda: None)
        self._thread.join(timeout=2)

    def requested(self, upgrade: PendingUpgrade, request: Request) -> None:
        """An upgrade has sent its request; on the door's thread."""
        endpoint = request.path in (CONTROL_PATH, DATA_PATH, LEG_PATH)
        page = None if "Upgrade" in request.headers else page_response(request.path)
        if page is not None:
            upgrade.give(page)
        elif endpoint:
            self._admit(upgrade, request, self._legs_admission.check(request, upgrade.host))
        elif request.path != TRACKER_PATH or self._has_room(upgrade, request):
            # A token may be valid once: everything that can be refused without it was checked
            # before.
            self._checked += 1
            self._checker.submit(self._check, upgrade, request)

    def forget(self, upgrade: PendingUpgrade) -> None:
        """One was admitted, or ends; on the door's thread."""
        self._upgrades.pop(upgrade, None)
        self._board.gone(upgrade)
        self.forwarder.forget(upgrade.socket)

    def _check(self, upgrade: PendingUpgrade, request: Request) -> None:
        """Runs on its own thread: a list of tokens is a file, with a lock that may be held."""
        admitted: admission.Refusal | str
        try:
            admitted = self._peers_admission.check(request, upgrade.host)
        except Exception:
            traceback.print_exc(file=sys.stderr)
            reason = "the tracker cannot check a token now"
            admitted = admission.Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, reason)
        self.forwarder.post(partial(self._after_check, upgrade, request, admitted))

    def _after_check(
        self, upgrade: PendingUpgrade, request: Request, admitted: admission.Refusal | str
    ) -> None:
        self._checked -= 1
        # It may have left meanwhile.
        if upgrade in self._upgrades:
            self._admit(upgrade, request, admitted)

    def _admit(
        self, upgrade: PendingUpgrade, request: Request, admitted: admission.Refusal | str
    ) -> None:
        if isinstance(admitted, admission.Refusal):
            upgrade.answer(admitted)
        elif request.path == TRACKER_PATH:
            self._let_in(upgrade, admitted)
        elif not upgrade.accept(request):
            return
        elif request.path == LEG_PATH:
            self._board.answer(upgrade, admitted)
        else:
            self._board.call(upgrade, admitted, request.path[1:])

    def _has_room(self, upgrade: PendingUpgrade, request: Request) -> bool:
        """Whether one more peer can be admitted by an upgrade; otherwise it is refused."""
        if len(self._peers) + self._checked >= MAX_PEERS:
            reason = f"all {MAX_PEERS} connections of this tracker are taken"
            upgrade.answer(admission.Refusal(HTTPStatus.SERVICE_UNAVAILABLE, reason))
            return False
        return upgrade.accept(request)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.forwarder.step(_STEP_SECONDS)
                self._look(time.monotonic())
            except Exception:
                # An internal fault must not end every other connection, and must be seen.
                traceback.print_exc(file=sys.stderr)
        for upgrade in list(self._upgrades):
            upgrade.end()
        for peer in list(self._peers.values()):
            peer.close(_GOING_AWAY, "the tracker ends")
        self._checker.shutdown(wait=False, cancel_futures=True)
        self.forwarder.close()
        self._listener.close()

    def _look(self, now: float) -> None:
        if now - self._looked > _STOPPED_SECONDS:
            # The tracker was stopped: that is no peer's silence.
            for peer in self._peers.values():
                peer.last_heard += now - self._looked
        self._looked = now
        self._acceptor.look()
        self._board.refuse_late()
        for upgrade in [v for v in self._upgrades if now > v.deadline]:
            if upgrade.taking or not upgrade.asked:
                upgrade.end()
        if now - self._pinged > PING_SECONDS:
            self._pinged = now
            for peer in list(self._peers.values()):
                if now - peer.last_heard > self._silence_seconds:
                    peer.close(_NORMAL, f"silent for {self._silence_seconds:g} s")
                else:
                    peer.ping()

    def _greet(self, connection: socket.socket, number: str) -> None:
        if len(self._upgrades) >= MAX_VISITORS:
            # A proper client makes its request at once: the one that has been silent longest goes.
            idle = next((v for v in self._upgrades if v.taking or not v.asked), None)
            if idle is None:
                connection.close()
                return
            idle.end()
        try:
            self._upgrades[PendingUpgrade(self, connection, _host(number), self._context)] = None
        except OSError:
            connection.close()

    def _let_in(self, upgrade: PendingUpgrade, identity: str) -> None:
        key = KEY_PREFIX + secrets.token_bytes(_KEY_BYTES)

        def ended(why: str) -> None:
            self._peers.pop(key, None)
            self._gone(key, why)

        try:
            peer = WebSocketPeer(
                upgrade,
                self.forwarder,
                identity,
                lambda message: self._heard(peer, key, message),
                ended,
            )
        except OSError:
            upgrade.end()
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
