"""The relay: joins a client's connection with one that its device makes, and forwards.

Both connect to the relay, so neither needs to be reachable. A client asks for ``TOKEN.control`` or
``TOKEN.data`` with its lease's secret; the device is asked to dial, and asks for ``STREAM.device``
with a secret that is valid once. The session's own connection goes through, encrypted end to end if
the device has keys: the relay cannot read it.
"""

from __future__ import annotations

import selectors
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from tapml_rpc.tracker import socks
from tapml_rpc.tracker.flow import Forwarder
from tapml_rpc.tracker.switchboard import (
    DIAL_SECONDS,
    MAX_FLOWS_OF_LEASE,
    Dial,
    Refusal,
    Switchboard,
)
from tapml_targets.errors import ProtocolError, SetupError

_AT_ONCE: Final = 64
_REST_SECONDS: Final = 1.0


class Acceptor:
    """Accepts connections to a listening socket.

    The owner of the non-blocking `listener` closes it. `greet` takes a connection and its remote
    address, on the forwarder's thread.
    """

    def __init__(
        self,
        forwarder: Forwarder,
        listener: socket.socket,
        greet: Callable[[socket.socket, Any], None],
    ) -> None:
        self._forwarder = forwarder
        self._listener = listener
        self._greet = greet
        self._rests_until = 0.0
        self._said = False
        self._watch()

    def look(self) -> None:
        """Accept again after a pause; call it a few times a second."""
        if self._rests_until and time.monotonic() > self._rests_until:
            self._rests_until = 0.0
            self._watch()

    def _watch(self) -> None:
        self._forwarder.watch(self._listener.fileno(), selectors.EVENT_READ, self._ready)

    def _ready(self, events: int) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                self._said = False
                return
            except ConnectionError:
                # It left before it was accepted.
                continue
            except OSError as error:
                # Waiting connections stay ready to be accepted: the thread would do nothing but
                # fail.
                self._forwarder.forget(self._listener.fileno())
                self._rests_until = time.monotonic() + _REST_SECONDS
                if not self._said:
                    self._said = True
                    text = "new connections wait until others have ended"
                    print(f"tapml tracker: cannot accept: {error}; {text}", file=sys.stderr)
                return
            self._greet(connection, address)


__all__ = ["MAX_FLOWS_OF_LEASE", "MAX_STRANGERS", "RelayServer"]

MAX_STRANGERS: Final = 256
_NEGOTIATION_SECONDS: Final = 3.0
_REQUEST_BYTES: Final = 600
_STEP_SECONDS: Final = 0.25
_CODES: Final = {
    Refusal.NO_ROOM: socks.FAILED,
    Refusal.NO_SUCH: socks.NOT_ALLOWED,
    Refusal.UNREACHABLE: socks.UNREACHABLE,
}


class _Stranger:
    """A connection that has not been joined yet: the switchboard's ``Caller``."""

    def __init__(self, relay: RelayServer, endpoint: socket.socket) -> None:
        self.endpoint = endpoint
        self.deadline = time.monotonic() + _NEGOTIATION_SECONDS
        self.negotiation = socks.Negotiation()
        self.asked = False
        """Whether it has made its request; from then on it waits for another."""
        self._relay = relay

    def grant(self) -> socket.socket:
        self._relay.forget(self)
        self.endpoint.send(socks.reply(socks.GRANTED))
        return self.endpoint

    def refuse(self, why: Refusal | None) -> None:
        self._relay.forget(self)
        with suppress(OSError):
            if why is not None:
                self.endpoint.send(socks.reply(_CODES[why]))
        self.endpoint.close()


class RelayServer:
    """Listens, joins, forwards, on its own thread.

    Port 0 takes a free one. `dial` is called on the relay's thread with lease id, stream and role
    when a device should connect, which may take `dial_seconds`. Raises SetupError if the address
    cannot be used.
    """

    def __init__(
        self, host: str, port: int, dial: Dial, *, dial_seconds: float = DIAL_SECONDS
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, port), family=family, backlog=512)
        except OSError as error:
            raise SetupError(
                f"cannot listen on {host}:{port} for the relay: {error.strerror or error}; if "
                "another tracker is there use that, or give other ports (--bind, --relay-port)"
            ) from None
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._forwarder = Forwarder()
        self._board = Switchboard(self._forwarder, dial, dial_seconds=dial_seconds)
        self._strangers: dict[_Stranger, None] = {}
        self._stop = threading.Event()
        self._acceptor = Acceptor(self._forwarder, self._listener, self._greet)
        self._thread = threading.Thread(target=self._run, name="tapml-relay", daemon=True)
        self._thread.start()

    def allow(self, lease_id: str, token: str) -> None:
        """Admit `token`. From any thread."""
        self._forwarder.post(partial(self._board.allow, lease_id, token))

    def cut(self, lease_id: str, token: str) -> None:
        """Cut the connections of a lease, and admit no more. From any thread."""
        self._forwarder.post(partial(self._board.cut, lease_id, token))

    def forget(self, stranger: _Stranger) -> None:
        """One is joined, or ends."""
        self._strangers.pop(stranger, None)
        self._board.gone(stranger)
        self._forwarder.forget(stranger.endpoint)

    def close(self) -> None:
        """End everything."""
        self._stop.set()
        self._forwarder.post(lambda: None)
        self._thread.join(timeout=2)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._forwarder.step(_STEP_SECONDS)
                self._acceptor.look()
                self._board.refuse_late()
                self._refuse_slow()
            except Exception:
                # An internal fault must not end every other stream, and must be seen.
                traceback.print_exc(file=sys.stderr)
        for stranger in list(self._strangers):
            stranger.refuse(None)
        self._forwarder.close()
        self._listener.close()

    def _greet(self, endpoint: socket.socket, address: object) -> None:
        if len(self._strangers) >= MAX_STRANGERS:
            # A proper client makes its request at once: the one that has been silent longest goes.
            idle = next((each for each in self._strangers if not each.asked), None)
            if idle is None:
                endpoint.close()
                return
            idle.refuse(None)
        endpoint.setblocking(False)
        endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        stranger = _Stranger(self, endpoint)
        self._strangers[stranger] = None
        self._forwarder.watch(endpoint, selectors.EVENT_READ, partial(self._negotiate, stranger))

    def _negotiate(self, stranger: _Stranger, events: int) -> None:
        try:
            data = stranger.endpoint.recv(_REQUEST_BYTES)
            # One that is waited for has nothing to send yet, and must not take up the thread.
            if not data or stranger.asked:
                stranger.refuse(None)
                return
            answer, name = stranger.negotiation.feed(data)
            if answer:
                stranger.endpoint.send(answer)
        except BlockingIOError:
            return
        except (OSError, ProtocolError):
            stranger.refuse(None)
            return
        if name is not None:
            stranger.asked = True
            secret, _, role = name.partition(".")
            if role == "device":
                self._board.answer(stranger, secret)
            else:
                self._board.call(stranger, secret, role)

    def _refuse_slow(self) -> None:
        now = time.monotonic()
        for stranger in [s for s in self._strangers if not s.asked and now > s.deadline]:
            stranger.refuse(None)
