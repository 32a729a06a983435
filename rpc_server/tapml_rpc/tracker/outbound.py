"""The device's end of the relay: dials out when told to, and joins that with its own server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from tapml_rpc.flow import Endpoint, Flow, Forwarder
from tapml_rpc.security.bind import SCHEMES, reachable, split_address
from tapml_rpc.standard_error import say
from tapml_rpc.tracker.records import LEG_PATH
from tapml_rpc.tracker.switchboard import ROLES
from tapml_rpc.tunnel import open_tunnel
from tapml_rpc.websocket.endpoint import WebSocketEndpoint
from tapml_rpc.websocket.handshake import check_address, open_socket
from tapml_targets.errors import InputError, TapmlError

if TYPE_CHECKING:
    from tapml_rpc.security.credentials import Credentials

DIAL_SECONDS: Final = 4.0
_STEP_SECONDS: Final = 0.5
_MAX_DIALS: Final = 32


@dataclass(frozen=True)
class Call:
    """A client waits at the relay.

    `stream` is the secret with which the device connects, valid once; `role` is ``control`` or
    ``data``; `relay` is host and port, port 0 if the device itself uses the WebSocket door.
    """

    lease_id: str
    token: str = field(repr=False)
    stream: str = field(repr=False)
    role: str
    relay: tuple[str, int]


Way = Callable[[Call], tuple[Endpoint, Endpoint]]
"""Dials the relay for a call, and the device's own server: both endpoints, non-blocking."""


def tunnel_way(control: str, data: str) -> Way:
    """The way of a device through tunnels: every byte, for any protocol of its server."""
    targets = {"control": _endpoint(control), "data": _endpoint(data)}

    def go(call: Call) -> tuple[Endpoint, Endpoint]:
        inside = socket.create_connection(targets[call.role], timeout=DIAL_SECONDS)
        try:
            outside = open_tunnel(call.relay, LEG_PATH, call.stream, DIAL_SECONDS)
        except BaseException:
            inside.close()
            raise
        for endpoint in (inside, outside):
            endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            endpoint.setblocking(False)
        return outside, inside

    return go


class Outbound:
    """Dials for the leases of one device, and forwards on its own thread."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._forwarder = Forwarder()
        self._flows: dict[str, set[Flow]] = {}
        self._open: set[str] = set()
        self._dialling = threading.BoundedSemaphore(_MAX_DIALS)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tapml-outbound", daemon=True)
        self._thread.start()

    def dial(self, call: Call) -> None:
        """Dial the relay for a stream of a lease; returns at once. From any thread."""
        if call.role not in ROLES or not self._dialling.acquire(blocking=False):
            return
        self._forwarder.post(partial(self._open.add, call.lease_id))
        threading.Thread(target=self._dial, args=(call,), name="tapml-dial", daemon=True).start()

    def cut(self, lease_id: str) -> None:
        """End the connections of a lease. From any thread."""
        self._forwarder.post(partial(self._cut, lease_id))

    def close(self) -> None:
        """End everything."""
        self._stop.set()
        self._forwarder.post(lambda: None)
        self._thread.join(timeout=2)

    def _run(self) -> None:
        self._forwarder.run(self._stop.is_set, _STEP_SECONDS)
        self._forwarder.close()

    def _dial(self, call: Call) -> None:
        try:
            flow = Flow(*self._way(call))
            self._forwarder.post(partial(self._join, call.lease_id, flow))
        except (OSError, TapmlError) as error:
            say(f"could not answer through the relay: {error}")
        finally:
            self._dialling.release()

    def _join(self, lease_id: str, flow: Flow) -> None:
        if lease_id not in self._open:
            flow.close()
            return
        flows = self._flows.setdefault(lease_id, set())
        flows -= {other for other in flows if other.ended}
        flows.add(flow)
        self._forwarder.add(flow)

    def _cut(self, lease_id: str) -> None:
        self._open.discard(lease_id)
        for flow in self._flows.pop(lease_id, ()):
            self._forwarder.end(flow)


def _endpoint(address: str) -> tuple[str, int]:
    there = split_address(address, SCHEMES)
    if there is not None and there[2]:
        return there[1:]
    raise InputError(f"expected the address of the device's own server, got {address!r}")


def websocket_way(
    tracker: str, credentials: Credentials | None, server: str, certificate: str
) -> Way:
    """The way between a tracker's WebSocket door and the device's own server.

    `credentials` say whom to trust at `tracker`; the relay's own secrets replace its token.
    `server`, the address of the device's own server, takes a lease's token if it asks for one;
    `certificate` is the fingerprint of its certificate, empty for none. Raises InputError if an
    address is malformed.
    """
    from tapml_rpc.security.tls import client_context

    outside_url = check_address(tracker) + LEG_PATH
    inside_url = reachable(check_address(server), "127.0.0.1")
    # Made once: reading the system's authorities takes a while.
    outside_context = (
        credentials.ssl_context() if credentials and tracker.startswith("wss://") else None
    )
    inside_context = client_context(fingerprint=certificate) if certificate else None

    def go(call: Call) -> tuple[Endpoint, Endpoint]:
        deadline = time.monotonic() + DIAL_SECONDS
        inside = open_socket(
            f"{inside_url}/{call.role}",
            deadline=deadline,
            token=call.token,
            ssl_context=inside_context,
        )
        try:
            outside = open_socket(
                outside_url, deadline=deadline, token=call.stream, ssl_context=outside_context
            )
        except BaseException:
            inside.close()
            raise
        return WebSocketEndpoint(outside, masked=False), WebSocketEndpoint(inside, masked=False)

    return go
