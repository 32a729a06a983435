"""The tracker process: ``tapml rpc tracker``."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from selectors import EVENT_READ
from typing import Any, Final

import zmq

from tapml_rpc import wire
from tapml_rpc.failures import failure_to_wire, show_fault
from tapml_rpc.flow import Forwarder
from tapml_rpc.security.bind import bracketed, check_bind, check_effects, is_loopback
from tapml_rpc.security.curve import Authenticator, ServerCurve
from tapml_rpc.standard_error import print_fault
from tapml_rpc.tracker.door import KEY_PREFIX, Door
from tapml_rpc.tracker.options import TrackerOptions
from tapml_rpc.tracker.records import (
    HEARTBEAT_SECONDS,
    HEARTBEAT_TIMEOUT_SECONDS,
    MAX_MESSAGE_BYTES,
    RELAYED,
    RELAYED_WEBSOCKET,
    VERSION,
    Lease,
    Sender,
)
from tapml_rpc.tracker.registry import Registry
from tapml_rpc.tunnel import ticket
from tapml_rpc.waking import StopRequest
from tapml_rpc.websocket.admission import Listening, prepare
from tapml_rpc.zeromq.router import RouterBounds, RouterEnd, RouterService, Socket
from tapml_targets.errors import ProtocolError, SetupError

_POLL_SECONDS: Final = 0.1
_PROBE_SECONDS: Final = 1.0
_STOPPED_SECONDS: Final = 1.0
_GIVEN_BY_US: Final = b"\0"
# A connection is dropped within three seconds when its other end is stopped or gone.
_BOUNDS: Final = RouterBounds(
    most_bytes=MAX_MESSAGE_BYTES,
    received=64,
    beat_milliseconds=int(1000 * HEARTBEAT_SECONDS),
    silent_milliseconds=int(1000 * HEARTBEAT_TIMEOUT_SECONDS),
)


Look = Callable[[Collection[str]], None]
"""Takes the registered devices' names, once a second."""
Announce = Callable[[dict[str, Any]], AbstractContextManager[Look | None]]


class TrackerLoop:
    """Serves devices and clients; `run` returns when the tracker should stop.

    Without `curve` it serves loopback only. `websocket` says where to listen for WebSockets, None
    for nowhere; `origins` are pages that may connect there, beside those of this machine. A peer
    there that shows no sign of life for `silence_seconds` is gone. `address` and `relay_port` are
    where devices and clients connect over ZeroMQ, and the relay's port; `door` is the rest.
    """

    def __init__(
        self,
        bind: str,
        relay_port: int,
        curve: ServerCurve | None = None,
        websocket: Listening | None = None,
        origins: tuple[str, ...] = (),
        silence_seconds: float = 10.0,
    ) -> None:
        host, port = check_bind(bind, secret=curve is not None, schemes=("tcp",))
        self._forwarder = Forwarder()
        local_door = websocket is not None and is_loopback(websocket.host)
        self._registry = Registry(self, time.monotonic, local_door=local_door)
        address = f"tcp://{bracketed(host)}:{port or '*'}"
        # First: the other ports are found beside this one, which is the one people know.
        self._context: zmq.Context[Socket] = zmq.Context()
        self._context.setsockopt(zmq.IPV6, int("[" in address))
        self._authenticator = None if curve is None else Authenticator(self._context, curve.clients)
        try:
            self._zmq = RouterService(
                self._forwarder,
                self._context,
                address,
                _BOUNDS,
                curve=curve,
                take=self._take_zmq,
                refuse=self._refuse,
                gone=lambda end: self.gone(end.key, "its connection dropped"),
            )
        except zmq.ZMQError as error:
            self._end()
            raise SetupError(
                f"cannot listen on {bind}: {zmq.strerror(error.errno or 0)}; if another tracker "
                "is there use that, or give another address to --bind"
            ) from None
        beside = _free_beside(port, 0 if websocket is None else websocket.port)
        try:
            self.door = Door(
                self._forwarder,
                (host, relay_port or beside),
                websocket,
                take=self.take,
                gone=self._registry.gone,
                dial=self._dial,
                origins=origins,
                silence_seconds=silence_seconds,
            )
        except BaseException:
            self._zmq.close()
            self._end()
            raise
        self.address = self._zmq.address
        self.relay_port = self.door.relay_port

    def run(self, stopping: StopRequest, look: Look | None = None) -> None:
        """Serve until `stopping`."""
        for descriptor in stopping.wake_fds:
            self._forwarder.watch(descriptor, EVENT_READ, lambda events: None)
        looked = probed = shown = next_look = time.monotonic()
        try:
            while not stopping.asked():
                try:
                    self._forwarder.step(0 if self._zmq.pending() else _POLL_SECONDS)
                except Exception as error:
                    # It must not end every other connection.
                    print_fault(error)
                now = time.monotonic()
                if now - looked > _STOPPED_SECONDS:
                    self._registry.excuse(now - looked)
                looked = now
                self._zmq.serve()
                if now >= next_look:
                    next_look = now + _POLL_SECONDS
                    self._zmq.check(now)
                    self.door.look(now)
                if now - probed > _PROBE_SECONDS:
                    probed = now
                    # On every connection that something depends on.
                    for key in self._registry.peers():
                        self.send(key, {"type": "probe"})
                self._registry.tick()
                if look is not None and now - shown > _PROBE_SECONDS:
                    shown = now
                    look(self._registry.devices.keys())
        finally:
            self.door.close("the tracker ends")
            self._zmq.close()
            self._end()

    def _end(self) -> None:
        if self._authenticator is not None:
            self._authenticator.close()
        self._context.destroy(linger=200)
        self._forwarder.close()

    def send(self, key: bytes, header: wire.Header) -> None:
        """Send without waiting; a peer that is unreachable or reads nothing is dropped soon."""
        if header.get("type") == "granted":
            if header["address"] == RELAYED:
                header = {**header, "relay_port": self.relay_port}
            elif header["address"] == RELAYED_WEBSOCKET:
                header = {**header, **self.door.way}
        packed = wire.pack(header)
        if key[:1] == KEY_PREFIX:
            self.door.send(key, packed)
        elif not self._zmq.end(key).send(packed):
            # It reads nothing, or has gone. Later: who sends may be in the middle of a decision.
            self._forwarder.post(partial(self.gone, key, "its connection dropped"))

    def gone(self, key: bytes, why: str) -> None:
        """A connection is gone; what depends on it ends."""
        if key in self._registry.peers():
            self._registry.gone(key, why)

    def open_relay(self, lease: Lease) -> None:
        """Let the lease's holder through to its device, if it needs that."""
        if lease.address in (RELAYED, RELAYED_WEBSOCKET):
            self.door.allow(lease.id, _shown_at_the_door(lease))

    def close_relay(self, lease: Lease) -> None:
        """Cut the connections of the lease's holder."""
        if lease.address in (RELAYED, RELAYED_WEBSOCKET):
            self.door.cut(lease.id, _shown_at_the_door(lease))

    def take(self, sender: Sender, read: Callable[[], wire.Header]) -> None:
        """Take a message, or answer its sender what is wrong with it."""
        number = None
        try:
            header = read()
            number = header.get("request")
            self._registry.receive(sender, header)
        except Exception as error:
            show_fault(error)
            reply: wire.Header = {"type": "refused", "error": failure_to_wire(error)}
            if type(number) is int and 0 <= number <= wire.MAX_INTEGER:
                reply["request"] = number
            self.send(sender.key, reply)

    def _take_zmq(self, end: RouterEnd, who: str, packed: bytes, chunk: memoryview) -> None:
        """Take what came to the ROUTER, whose peers have the routing ids that it gave them.

        Otherwise what depends on a connection would belong to the next one of the same name.
        """
        if end.key[:1] != _GIVEN_BY_US:
            raise ProtocolError("a tracker's peer chooses no ZeroMQ routing id of its own")
        if chunk:
            raise ProtocolError("a message to a tracker is one header")
        self.take(Sender(end.key, who, end.host), partial(wire.unpack, packed))

    def _refuse(self, end: RouterEnd, error: Exception) -> None:
        show_fault(error)
        self.send(end.key, {"type": "refused", "error": failure_to_wire(error)})

    def _dial(self, lease_id: str, stream: str, role: str) -> None:
        """Ask a device to connect for a client that waits."""
        lease = self._registry.leases.held(lease_id)
        if lease is not None:
            dial = {"type": "dial", "lease": lease_id, "stream": stream, "role": role}
            port = {"relay_port": self.relay_port} if lease.address == RELAYED else {}
            self.send(lease.device.sender.key, {**dial, **port})


def _shown_at_the_door(lease: Lease) -> str:
    """What its holder shows: the token goes through TLS alone."""
    return ticket(lease.token) if lease.address == RELAYED else lease.token


def _free_beside(port: int, taken: int) -> int:
    """A relay's port beside the address's, other than the WebSocket's; 0 for any free one."""
    if not port:
        return 0
    return port + 1 if port + 1 != taken else port + 2


def run_tracker(options: TrackerOptions, announce: Announce) -> int:
    """Track devices until a signal or the parent's end: the exit code. May raise TapmlError.

    `announce` is called once with what a line of JSON is to say of the addresses.
    """
    check_effects(options)
    stopping = StopRequest(options.parent)
    curve = None
    if options.key:
        clients = Path(options.clients).expanduser() if options.clients else None
        curve = ServerCurve.from_files(Path(options.key).expanduser(), clients)
    websocket = _websocket(options) if options.websocket else None
    loop = TrackerLoop(
        options.bind, options.relay_port, curve, websocket, options.origins, options.silence_seconds
    )
    line = {
        "address": loop.address,
        "relay_port": loop.relay_port,
        "key": curve.keys.public if curve is not None else "",
        "epoch": secrets.token_hex(8),
        "pid": os.getpid(),
        "protocol": VERSION,
    }
    if websocket is not None:
        line |= {"websocket": loop.door.address, **websocket.announced}
    with announce(line) as look:
        loop.run(stopping, look)
    return 0


def _websocket(options: TrackerOptions) -> Listening:
    return prepare(
        options.websocket,
        tokens=Path(options.tokens).expanduser() if options.tokens else None,
        certificate=options.certificate,
        certificate_key=options.certificate_key,
    )
