"""The tracker's door: WebSockets of devices and clients, and what is relayed between the two.

``/tracker`` takes the messages that the ROUTER socket takes. ``/control`` and ``/data`` are a lent
device's two connections; on ``/leg`` the device connects for a client that waits. They are
WebSockets, or on the relay's own port tunnels (:mod:`tapml_rpc.tunnel`). ``/`` is the page
that makes a browser a device. Everything runs on the tracker's thread, and nothing waits.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Final

from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from tapml_rpc import wire
from tapml_rpc.flow import Endpoint, Forwarder
from tapml_rpc.security.bind import bracketed
from tapml_rpc.tracker.records import LEG_PATH, MAX_MESSAGE_BYTES, TRACKER_PATH, WEBSOCKET, Sender
from tapml_rpc.tracker.switchboard import Dial, Refusal, Switchboard
from tapml_rpc.tracker.web_page import page_response
from tapml_rpc.tunnel import PROTOCOL
from tapml_rpc.websocket import admission, frames
from tapml_rpc.websocket.admission import LOOPBACK_ORIGINS, Admission, Listening, given_token
from tapml_rpc.websocket.connection import NORMAL, UNSUPPORTED, ServerConnection
from tapml_rpc.websocket.endpoint import WebSocketEndpoint
from tapml_rpc.websocket.frames import CONTROL_PATH, DATA_PATH
from tapml_rpc.websocket.server import PendingUpgrade, WebSocketServer, listen
from tapml_targets.errors import ProtocolError, SetupError

KEY_PREFIX: Final = b"w"
MAX_PEERS: Final = 1024
PING_SECONDS: Final = 1.0
MOST_UNSENT_BYTES: Final = 4 << 20
"""What may wait for a peer that reads slowly: a few pages of a list of devices."""
_ENDPOINTS: Final = (CONTROL_PATH, DATA_PATH, LEG_PATH)
_STOPPED_SECONDS: Final = 1.0
_KEY_BYTES: Final = 16
_LENGTH_BYTES: Final = 4
_STATUS: Final = {
    Refusal.NO_ROOM: HTTPStatus.SERVICE_UNAVAILABLE,
    Refusal.NO_SUCH: HTTPStatus.UNAUTHORIZED,
    Refusal.UNREACHABLE: HTTPStatus.SERVICE_UNAVAILABLE,
}

Take = Callable[[Sender, Callable[[], wire.Header]], object]
"""Takes a sender and what reads its message, which may raise."""
Gone = Callable[[bytes, str], None]
"""Takes the key of a peer that has gone, and why."""


class _Secrets:
    """The guard of the relay's connections: a switchboard's secret is the identity it gives."""

    def __init__(self, board: Switchboard) -> None:
        self._board = board

    def check(self, token: str, address: str, *, opens: bool = True) -> str:
        if not self._board.knows(token):
            raise SetupError(Refusal.NO_SUCH.value)
        return token


class _Relayed(PendingUpgrade):
    """A new connection; the switchboard's ``Caller`` if it is to be relayed."""

    def grant(self) -> Endpoint:
        """Complete the upgrade; the connection as an endpoint."""
        return WebSocketEndpoint(self.come_in(), masked=True)

    def refuse(self, why: Refusal | None) -> None:
        """Refuse the request, if it has come, and end."""
        if why is None:
            self.end()
        elif self.socket.fileno() >= 0:
            self.answer(admission.Refusal(_STATUS[why], why.value))


class _Tunnel(_Relayed):
    """A new connection to the relay's own port."""

    def grant(self) -> Endpoint:
        """Complete the upgrade; the connection itself is the endpoint."""
        return self.come_in()


class Door(WebSocketServer):
    """Listens, admits, joins and forwards on the thread of `forwarder`.

    `relay` is where tunnels are served, host and port; `listening` says where WebSockets are, None
    for nowhere, with `origins` of pages that may connect beside those of this machine. `take` gets
    messages, `gone` the ends of connections; `dial` is called with lease id, stream and role when a
    device should connect, which may take `dial_seconds`. A peer without a sign of life for
    `silence_seconds`, not even the pong its WebSocket owes, is gone. Raises SetupError if an
    address cannot be used.
    """

    def __init__(
        self,
        forwarder: Forwarder,
        relay: tuple[str, int],
        listening: Listening | None,
        *,
        take: Take,
        gone: Gone,
        dial: Dial,
        origins: Sequence[str | re.Pattern[str]] = (),
        silence_seconds: float = 10.0,
        dial_seconds: float = 5.0,
    ) -> None:
        context = None if listening is None else listening.context
        guard = None if listening is None else listening.tokens
        allowed = (*LOOPBACK_ORIGINS, *origins)
        paths, page = (TRACKER_PATH, *_ENDPOINTS), "http" if context is None else "https"
        super().__init__(forwarder, Admission(guard, allowed, paths, page), MAX_PEERS)
        self._board = Switchboard(forwarder, dial, dial_seconds=dial_seconds)
        self.allow, self.cut = self._board.allow, self._board.cut
        self._relayed_admission = Admission(_Secrets(self._board), allowed, paths, page)
        self._take, self._gone = take, gone
        self._silence_seconds = silence_seconds
        self._peers: dict[bytes, ServerConnection] = {}
        self._pinged = self._looked = time.monotonic()
        self.address = ""
        self.way: wire.Header = {}
        """What a lease says of the way over WebSocket through here."""
        relay_advice = (
            "if another tracker is there use that, or give other ports (--bind, --relay-port)"
        )
        advice = "if another tracker is there use that, or give another port to --websocket"
        if listening is not None:
            listener = listen(listening.host, listening.port, advice)
            port = listener.getsockname()[1]
            scheme = "ws" if context is None else "wss"
            self.address = f"{scheme}://{bracketed(listening.host)}:{port}"
            self.way = {
                "address": f"relay+{scheme}",
                "relay_port": port,
                "certificate": listening.announced.get("fingerprint", ""),
            }
            self.serve(listener, context, _Relayed)
        try:
            listener = listen(*relay, relay_advice)
        except BaseException:
            self.close("")
            raise
        self.relay_port: int = listener.getsockname()[1]
        self.serve(listener, kind=_Tunnel)

    def send(self, key: bytes, packed: bytes) -> None:
        """Send a header to a peer; one that is gone, or reads nothing, is reported."""
        peer = self._peers.get(key)
        if peer is not None:
            peer.put(frames.head(packed, 0))

    def requested(self, upgrade: PendingUpgrade, request: Request) -> None:
        """A request has come."""
        assert isinstance(upgrade, _Relayed)  # noqa: S101 - see `serve`
        page = None if "Upgrade" in request.headers else page_response(request.path)
        if isinstance(upgrade, _Tunnel):
            self._tunnel(upgrade, request)
        elif page is not None:
            upgrade.give(page)
        elif request.path in _ENDPOINTS:
            admitted = self._relayed_admission.check(request, upgrade.host)
            if isinstance(admitted, admission.Refusal):
                why = f"this is a tracker, whose devices are tracker:NAME; {admitted.reason}"
                upgrade.answer(replace(admitted, reason=why))
            elif upgrade.accept(request):
                self._join(upgrade, request.path, admitted)
        else:
            super().requested(upgrade, request)

    def enter(self, upgrade: PendingUpgrade, request: Request, identity: str) -> None:
        """Take the messages of a device or a client."""
        key = KEY_PREFIX + secrets.token_bytes(_KEY_BYTES)
        sender = Sender(key, identity, upgrade.host, WEBSOCKET)

        def hear(message: memoryview | None) -> None:
            if message is None:
                self._peers[key].close(UNSUPPORTED, "messages are binary")
            else:
                self._take(sender, partial(_header_of, message))

        def ended(why: str) -> None:
            self._peers.pop(key, None)
            # Later: who sends may be in the middle of a decision.
            self.forwarder.post(partial(self._gone, key, why))

        most = MAX_MESSAGE_BYTES + _LENGTH_BYTES
        try:
            self._peers[key] = self.connect(
                upgrade, hear, ended, most_bytes=most, most_unsent=MOST_UNSENT_BYTES
            )
        except OSError:
            upgrade.end()

    def forget(self, upgrade: PendingUpgrade) -> None:
        """One was admitted, or ends."""
        super().forget(upgrade)
        assert isinstance(upgrade, _Relayed)  # noqa: S101 - see `serve`
        self._board.gone(upgrade)

    def look(self, now: float) -> None:
        """Check timeouts."""
        super().look(now)
        if now - self._looked > _STOPPED_SECONDS:
            # The tracker was stopped: that is no peer's silence.
            for peer in self._peers.values():
                peer.last_heard += now - self._looked
        self._looked = now
        self._board.refuse_late()
        if now - self._pinged > PING_SECONDS:
            self._pinged = now
            for peer in list(self._peers.values()):
                if now - peer.last_heard > self._silence_seconds:
                    peer.close(NORMAL, f"silent for {self._silence_seconds:g} s")
                else:
                    peer.ping()

    def _tunnel(self, upgrade: _Tunnel, request: Request) -> None:
        """Have a byte tunnel joined, or refuse it."""
        if request.headers.get("Upgrade") != PROTOCOL or request.path not in _ENDPOINTS:
            reason = f"this is a tapml tracker's relay, for {PROTOCOL} on {', '.join(_ENDPOINTS)}"
            upgrade.answer(admission.Refusal(HTTPStatus.UPGRADE_REQUIRED, reason))
            return
        agreed = Headers({"Connection": "Upgrade", "Upgrade": PROTOCOL})
        upgrade.response = Response(HTTPStatus.SWITCHING_PROTOCOLS, "Switching Protocols", agreed)
        self._join(upgrade, request.path, given_token(request) or "")

    def _join(self, upgrade: _Relayed, path: str, secret: str) -> None:
        if path == LEG_PATH:
            self._board.answer(upgrade, secret)
        else:
            self._board.call(upgrade, secret, path[1:])


def _header_of(message: memoryview) -> wire.Header:
    packed, chunk = frames.split(message)
    if chunk:
        raise ProtocolError("a message to a tracker is one header")
    return wire.unpack(packed)
