"""The WebSocket binding of a supervisor: admitted clients' sessions, on a thread of its own.

Nothing here waits for a device: messages go to a session's relay, and the worker's are read when
its socket is readable.
"""

from __future__ import annotations

import re
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from websockets.http11 import Request

from tapml_rpc import wire
from tapml_rpc.failures import error_reply, failure_to_wire, show_fault
from tapml_rpc.flow import Forwarder
from tapml_rpc.security.bind import bracketed
from tapml_rpc.supervisor.clients import Client, Clients
from tapml_rpc.supervisor.hub import Hub
from tapml_rpc.supervisor.worker_process import Start
from tapml_rpc.websocket import frames
from tapml_rpc.websocket.admission import LOOPBACK_ORIGINS, Admission, Guard
from tapml_rpc.websocket.connection import (
    GOING_AWAY,
    NORMAL,
    REFUSED,
    UNSUPPORTED,
    Parts,
    ServerConnection,
)
from tapml_rpc.websocket.server import PendingUpgrade, WebSocketServer, listen
from tapml_targets.errors import ProtocolError

HELLO_SECONDS: Final = 10.0
STALL_SECONDS: Final = 60.0
MOST_CONNECTIONS: Final = 256
# What a session's ring holds, and its small messages.
_MOST_UNSENT_BYTES: Final = 40 << 20
# A header and its length; no message on control has a chunk.
_MOST_CONTROL_BYTES: Final = wire.MAX_STRANGER_BYTES + 4
_STEP_SECONDS: Final = 0.05
_END_SECONDS: Final = 5.0


class _Client(Client):
    """A client on its two WebSockets."""

    def __init__(self, control: ServerConnection) -> None:
        self.control = control
        self.data: ServerConnection | None = None

    def send_control(self, packed: bytes) -> bool:
        """Send a packed header on the control connection."""
        return self.control.put(frames.head(packed, 0))

    def send_data(
        self, packed: bytes, parts: Parts, sent: Callable[[], None] | None = None
    ) -> bool:
        """Send a packed header and its chunk on the data connection."""
        if self.data is None:
            if sent is not None:
                sent()
            return False
        return self.data.put(frames.head(packed, sum(map(len, parts))), parts, sent)

    def stalled_seconds(self, now: float) -> float:
        """How long the client has taken none of the bytes that wait for it."""
        both = filter(None, (self.control, self.data))
        return max(each.stalled_seconds(now) for each in both)


class _Connection:
    """An admitted connection; nobody knows whose before its first message, due by `deadline`."""

    def __init__(
        self, front: WebSocketFront, upgrade: PendingUpgrade, identity: str, *, control: bool
    ) -> None:
        self.identity = identity
        self.client: _Client | None = None
        self.deadline = time.monotonic() + HELLO_SECONDS
        self.what = "control" if control else "data"
        self._front = front
        self.peer = front.connect(
            upgrade,
            self._hear_control if control else self._hear_data,
            self._ended,
            most_bytes=_MOST_CONTROL_BYTES if control else frames.MAX_MESSAGE_BYTES,
            most_unsent=_MOST_UNSENT_BYTES,
        )

    def _hear_control(self, message: memoryview | None, waited: Start | None = None) -> None:
        try:
            packed, chunk = _split(message)
            if chunk:
                raise ProtocolError("a control message has no chunk")
            header = wire.unpack(packed)
            if self.client is None:
                if header.get("type") != "hello":
                    raise ProtocolError("a control connection begins with a hello")
                again = partial(self._hear_control, message)
                client, address = _Client(self.peer), self._front.address + frames.DATA_PATH
                greet = self._front.clients.greet
                if greet(header, client, self.identity, address, again, waited):
                    self.client = client
                # It may have to wait for a worker, but nobody waits for it any more.
                self._front.waiting.pop(self, None)
                return
            if header.get("session") != self.client.relay.token:
                raise ProtocolError("no such session: it has ended, or is another connection's")
            reply = self._front.clients.control(self.client, header)
            if reply is not None:
                self.peer.put(frames.head(reply, 0))
        except Exception as error:
            show_fault(error)
            refused = {"type": "refused", "error": failure_to_wire(error)}
            self.peer.put(frames.head(wire.pack(refused), 0))
            if self.client is None:
                self.peer.close(REFUSED, str(error))

    def _hear_data(self, message: memoryview | None) -> None:
        header: wire.Header | None = None
        try:
            packed, chunk = _split(message)
            header = wire.unpack(packed)
            if self.client is None:
                self.client = self._front.clients.claim(header, self.identity, self.peer)
                self._front.waiting.pop(self, None)
            elif wire.octets(header.get("session"), "session", 64) != self.client.relay.token:
                raise ProtocolError("this connection belongs to another session")
            self.client.relay.accept(header, bytes(packed), chunk)
        except Exception as error:
            show_fault(error)
            self.peer.put(frames.head(error_reply(error, header), 0))
            if self.client is None or message is None:
                self.peer.close(UNSUPPORTED if message is None else REFUSED, str(error))
        if self.client is not None:
            self._front.clients.settle(self.client)

    def _ended(self, why: str) -> None:
        self._front.waiting.pop(self, None)
        if self.client is not None:
            self._front.clients.drop(self.client, f"its {self.what} connection is gone")


class WebSocketFront(WebSocketServer):
    """Serves a hub's sessions over WebSocket until closed; port 0 takes a free one.

    `tokens`, such as a :class:`tapml_rpc.security.token.TokenBook`, say who is admitted, and are
    needed off loopback. `ssl_context` with the server's certificate is for ``wss``. `origins` of
    pages that may connect, texts or patterns that match completely, replace the default, the pages
    of this machine. A session whose client takes no bytes for `stall_seconds` is ended. `address`
    is ``ws://host:port`` or ``wss://host:port``. Everything but :meth:`close` runs on its own
    thread. Raises SetupError if the address cannot be used.
    """

    def __init__(
        self,
        hub: Hub,
        host: str,
        port: int,
        *,
        tokens: Guard | None = None,
        ssl_context: ssl.SSLContext | None = None,
        origins: Sequence[str | re.Pattern[str]] = LOOPBACK_ORIGINS,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        advice = (
            "if another server is there end it, or give another port to --websocket (0 takes a "
            "free one)"
        )
        # First: a server that cannot listen has opened nothing.
        listener = listen(host, port, advice)
        super().__init__(Forwarder(), Admission(tokens, origins), MOST_CONNECTIONS)
        self.hub = hub
        # Connections that have not said whose they are, oldest first.
        self.waiting: dict[_Connection, None] = {}
        self._stall_seconds = stall_seconds
        self.clients: Clients[_Client] = Clients(hub, self.forwarder, self._over)
        scheme = "wss" if ssl_context else "ws"
        self.address = f"{scheme}://{bracketed(host)}:{listener.getsockname()[1]}"
        self.serve(listener, ssl_context)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tapml-websocket", daemon=True)
        self._thread.start()

    def close(self, why: str = "the server ends") -> None:
        """End all sessions of this binding and stop listening. Closing twice does nothing."""
        self._stop.set()
        self.forwarder.post(lambda: None)
        self._thread.join(timeout=_END_SECONDS)

    def enter(self, upgrade: PendingUpgrade, request: Request, identity: str) -> None:
        """Serve an admitted connection."""
        control = request.path == frames.CONTROL_PATH
        try:
            connection = _Connection(self, upgrade, identity, control=control)
        except OSError:
            upgrade.end()
            return
        self.waiting[connection] = None
        # A client with a session says so at once: of more data connections than there can be
        # sessions the oldest belongs to none.
        most = self.hub.bounds.sessions
        data = [each for each in self.waiting if each.what == "data"]
        if not control and len(data) > most:
            del self.waiting[data[0]]
            why = f"it has not named its session, and {most} other connections are waiting"
            data[0].peer.close(REFUSED, why)

    def look(self, now: float) -> None:
        """Check timeouts."""
        super().look(now)
        for connection in [each for each in self.waiting if now > each.deadline]:
            first = "hello" if connection.what == "control" else "message"
            connection.peer.close(REFUSED, f"no {first} within {HELLO_SECONDS:g} s")
        self.clients.check(now)
        for client in self.clients:
            stalled = client.stalled_seconds(now)
            if stalled > self._stall_seconds:
                self.clients.drop(client, f"it has taken none of its data for {stalled:.0f} s")

    def _over(self, client: _Client, why: str) -> None:
        for peer in filter(None, (client.control, client.data)):
            peer.close(GOING_AWAY if self._stop.is_set() else NORMAL, why)

    def _run(self) -> None:
        next_look = 0.0

        def ended() -> bool:
            nonlocal next_look
            if (now := time.monotonic()) >= next_look:
                next_look = now + _STEP_SECONDS
                self.look(now)
            return self._stop.is_set()

        self.forwarder.run(ended, _STEP_SECONDS)
        for client in self.clients:
            self.clients.drop(client, "the server ends")
        super().close("the server ends")
        self.forwarder.close()


def _split(message: memoryview | None) -> tuple[memoryview, memoryview]:
    """Header and chunk; raises ProtocolError for text and for malformed messages."""
    if message is None:
        raise ProtocolError("a text message came; messages are binary")
    return frames.split(message)
