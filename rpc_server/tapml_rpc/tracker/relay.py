"""The relay: joins a client's connection with one that its device makes, and forwards.

Both come to the relay, so neither needs to be reachable. A client asks for ``TOKEN.control`` or
``TOKEN.data`` with its lease's secret; the device is told to dial, and asks for ``STREAM.device``
with a secret that is good once. What goes through is the session's own connection, encrypted end
to end where the device has keys: the relay could not read it if it wanted to.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tapml_rpc.tracker import socks
from tapml_rpc.tracker.flow import Flow, Forwarder
from tapml_targets.errors import ProtocolError, SetupError

ROLES: Final = ("control", "data")
DIAL_SECONDS: Final = 5.0
MAX_FLOWS: Final = 256
MAX_FLOWS_OF_LEASE: Final = 8
MAX_STRANGERS: Final = 256
_NEGOTIATION_SECONDS: Final = 3.0
_REQUEST_BYTES: Final = 600
_STEP_SECONDS: Final = 0.25
_AT_ONCE: Final = 64

Dial = Callable[[str, str, str], None]


@dataclass(eq=False)
class _Stranger:
    """A connection that has not been joined yet."""

    leg: socket.socket
    deadline: float
    negotiation: socks.Negotiation = field(default_factory=socks.Negotiation)
    stream: str = ""
    lease_id: str = ""


class RelayServer:
    """Listens, joins, forwards, on a thread of its own.

    Parameters
    ----------
    host, port
        Where to listen; port 0 takes a free one.
    dial
        Called on the relay's thread with lease id, stream and role when a device shall come.
    dial_seconds
        How long that may take.

    Raises
    ------
    SetupError
        If the address cannot be used.

    Attributes
    ----------
    port
        Where it listens.
    """

    def __init__(
        self, host: str, port: int, dial: Dial, *, dial_seconds: float = DIAL_SECONDS
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, port), family=family, backlog=512)
        except OSError as error:
            raise SetupError(f"cannot listen on {host}:{port} for the relay: {error}") from None
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._dial = dial
        self._dial_seconds = dial_seconds
        self._forwarder = Forwarder()
        self._leases: dict[str, str] = {}
        self._flows: dict[str, set[Flow]] = {}
        self._strangers: dict[_Stranger, None] = {}
        self._awaited: dict[str, _Stranger] = {}
        self._stop = threading.Event()
        self._forwarder.watch(self._listener.fileno(), selectors.EVENT_READ, self._accept)
        self._thread = threading.Thread(target=self._run, name="tapml-relay", daemon=True)
        self._thread.start()

    def allow(self, lease_id: str, token: str) -> None:
        """Let through who knows `token`. From any thread."""
        self._forwarder.post(partial(self._leases.__setitem__, token, lease_id))

    def cut(self, lease_id: str, token: str) -> None:
        """End what goes through a lease, and let nothing more through it. From any thread."""
        self._forwarder.post(partial(self._cut, lease_id, token))

    def close(self) -> None:
        """End everything."""
        self._stop.set()
        self._forwarder.post(lambda: None)
        self._thread.join(timeout=2)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._forwarder.step(_STEP_SECONDS)
                self._forget_late()
            except Exception:
                # A fault of ours must not end every other stream, and must be seen.
                traceback.print_exc(file=sys.stderr)
        for stranger in list(self._strangers):
            self._refuse(stranger)
        self._forwarder.close()
        self._listener.close()

    def _accept(self, events: int) -> None:
        with suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                self._greet(self._listener.accept()[0])

    def _greet(self, leg: socket.socket) -> None:
        if len(self._strangers) >= MAX_STRANGERS:
            # Who means well says what it wants at once: the one that has said nothing longest goes.
            idle = next((each for each in self._strangers if not each.stream), None)
            if idle is None:
                leg.close()
                return
            self._refuse(idle)
        leg.setblocking(False)
        leg.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        leg.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        stranger = _Stranger(leg, time.monotonic() + _NEGOTIATION_SECONDS)
        self._strangers[stranger] = None
        self._forwarder.watch(leg, selectors.EVENT_READ, partial(self._negotiate, stranger))

    def _negotiate(self, stranger: _Stranger, events: int) -> None:
        try:
            data = stranger.leg.recv(_REQUEST_BYTES)
            # One that is waited for has nothing to say yet, and must not take up the thread.
            if not data or stranger.stream:
                self._refuse(stranger)
                return
            answer, name = stranger.negotiation.feed(data)
            if answer:
                stranger.leg.send(answer)
        except BlockingIOError:
            return
        except (OSError, ProtocolError):
            self._refuse(stranger)
            return
        if name is not None:
            secret, _, role = name.partition(".")
            if role == "device":
                self._join(stranger, secret)
            else:
                self._await_device(stranger, secret, role)

    def _await_device(self, stranger: _Stranger, token: str, role: str) -> None:
        lease_id = self._leases.get(token)
        if lease_id is None or role not in ROLES:
            self._refuse(stranger, socks.NOT_ALLOWED)
            return
        waiting = sum(other.lease_id == lease_id for other in self._strangers)
        if (
            len(self._open_flows(lease_id)) + waiting >= MAX_FLOWS_OF_LEASE
            or len(self._forwarder.flows) >= MAX_FLOWS
        ):
            self._refuse(stranger, socks.FAILED)
            return
        stranger.lease_id = lease_id
        stranger.stream = secrets.token_hex(16)
        stranger.deadline = time.monotonic() + self._dial_seconds
        self._awaited[stranger.stream] = stranger
        self._dial(lease_id, stranger.stream, role)

    def _join(self, device: _Stranger, stream: str) -> None:
        client = self._awaited.pop(stream, None)
        if client is None:
            self._refuse(device, socks.NOT_ALLOWED)
            return
        for each in (client, device):
            self._strangers.pop(each, None)
            self._forwarder.forget(each.leg)
        flow = Flow(client.leg, device.leg)
        try:
            for each in (client, device):
                each.leg.send(socks.reply(socks.GRANTED))
        except OSError:
            flow.close()
            return
        self._open_flows(client.lease_id).add(flow)
        self._forwarder.add(flow)

    def _open_flows(self, lease_id: str) -> set[Flow]:
        flows = self._flows.setdefault(lease_id, set())
        flows -= {flow for flow in flows if flow.ended}
        return flows

    def _cut(self, lease_id: str, token: str) -> None:
        self._leases.pop(token, None)
        for flow in self._flows.pop(lease_id, ()):
            self._forwarder.end(flow)
        for stranger in [each for each in self._strangers if each.lease_id == lease_id]:
            self._refuse(stranger, socks.NOT_ALLOWED)

    def _forget_late(self) -> None:
        now = time.monotonic()
        for stranger in [each for each in self._strangers if now > each.deadline]:
            self._refuse(stranger, socks.UNREACHABLE)

    def _refuse(self, stranger: _Stranger, code: int | None = None) -> None:
        self._strangers.pop(stranger, None)
        self._awaited.pop(stranger.stream, None)
        self._forwarder.forget(stranger.leg)
        with suppress(OSError):
            if code is not None:
                stranger.leg.send(socks.reply(code))
            stranger.leg.close()
