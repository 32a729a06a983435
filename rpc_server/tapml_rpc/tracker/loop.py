"""What a tracker does all day: takes messages, decides, answers.

One thread serves the ROUTER socket of devices and clients and decides; the relay has one of its
own, and so has the way in over WebSocket.
"""

from __future__ import annotations

import ipaddress
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from tapml_rpc import wire
from tapml_rpc.failures import failure_to_wire
from tapml_rpc.security.bind import bracketed, check_bind, is_loopback
from tapml_rpc.security.curve import Authenticator, ServerCurve, apply_server, client_identity
from tapml_rpc.tracker.records import (
    MAX_MESSAGE_BYTES,
    RELAYED,
    RELAYED_WEBSOCKET,
    Lease,
    Sender,
)
from tapml_rpc.tracker.registry import Registry
from tapml_rpc.tracker.relay import RelayServer
from tapml_rpc.tracker.stopping import StopRequest
from tapml_rpc.tracker.waking import Waker
from tapml_rpc.tracker.websocket_entrance import WebSocketEntrance
from tapml_rpc.tracker.zmq_connection import set_heartbeats
from tapml_rpc.websocket.listening import Listening
from tapml_targets.errors import ProtocolError, SetupError, TapmlError

_POLL_MILLISECONDS: Final = 100
_MESSAGES_AT_ONCE: Final = 64
_PROBE_SECONDS: Final = 1.0
_STOPPED_SECONDS: Final = 1.0
_GIVEN_BY_US: Final = b"\0"


class TrackerLoop:
    """Serves devices and clients; `run` returns when the tracker shall stop.

    Parameters
    ----------
    curve
        Keys and who is admitted; None for neither, on loopback alone.
    websocket
        Where devices and clients come over WebSocket; None for nowhere.
    origins
        Pages that may come there, beside those of this machine.
    silence_seconds
        Who gives no sign of life there for so long is gone.

    Attributes
    ----------
    address, relay_port
        Of the ROUTER socket, and the relay's.
    entrance
        For WebSocket; None for none.
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
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._dials: deque[tuple[str, str, str, int]] = deque()
        self._waker = Waker()
        self._unreachable: set[bytes] = set()
        self._curve = curve
        self._admission: Authenticator | None = None
        local_door = websocket is not None and is_loopback(websocket.host)
        self._registry = Registry(self, time.monotonic, local_door=local_door)
        self.entrance: WebSocketEntrance | None = None
        try:
            if websocket is not None:
                self.entrance = WebSocketEntrance(
                    websocket,
                    origins,
                    silence_seconds,
                    self._waker.wake,
                    lambda *call: self._ask_to_dial(call, 0),
                )
            self._relay = RelayServer(
                host,
                relay_port or _free_beside(port, 0 if websocket is None else websocket.port),
                lambda *call: self._ask_to_dial(call, self._relay.port),
            )
            socket = self._socket
            socket.linger = 0
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            socket.setsockopt(zmq.HANDSHAKE_IVL, 3000)
            socket.setsockopt(zmq.RCVHWM, 64)
            socket.setsockopt(zmq.SNDHWM, 256)
            socket.setsockopt(zmq.IPV6, int(":" in host))
            set_heartbeats(socket)
            if curve is not None:
                self._admission = Authenticator(self._context, curve.clients)
            apply_server(socket, curve)
            self._monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            socket.bind(f"tcp://{bracketed(host)}:{port or '*'}")
        except BaseException as error:
            if self.entrance is not None:
                self.entrance.close()
            self._context.destroy(linger=0)
            if isinstance(error, zmq.ZMQError):
                raise SetupError(
                    f"cannot listen on {bind}: {error}; if another tracker is there use that, or "
                    "give another address to --bind"
                ) from None
            raise
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.relay_port = self._relay.port

    def run(
        self, stopping: StopRequest, look: Callable[[Collection[str]], None] | None = None
    ) -> None:
        """Serve until told to stop.

        Parameters
        ----------
        look
            Called once a second with the names of the devices that are registered.
        """
        poller = zmq.Poller()
        for source in (self._socket, self._monitor, self._waker.fileno(), *stopping.wake_fds):
            poller.register(source, zmq.POLLIN)
        looked = probed = told = time.monotonic()
        try:
            while not stopping.asked():
                poller.poll(_POLL_MILLISECONDS)
                now = time.monotonic()
                if now - looked > _STOPPED_SECONDS:
                    self._registry.excuse(now - looked)
                looked = now
                for _ in range(_MESSAGES_AT_ONCE):
                    if not self._receive():
                        break
                self._waker.drain()
                if self.entrance is not None:
                    self.entrance.hand_over(self._take, self._registry.gone)
                self._send_dials()
                dropped = self._drain_monitor()
                if dropped or now - probed > _PROBE_SECONDS:
                    probed = now
                    for key in self._registry.peers():
                        self.send(key, {"type": "probe"})
                self._registry.tick()
                self._drop_unreachable()
                if look is not None and now - told > _PROBE_SECONDS:
                    told = now
                    look(self._registry.devices.keys())
        finally:
            self._relay.close()
            if self.entrance is not None:
                self.entrance.close()
            self._socket.disable_monitor()
            self._socket.close(linger=200)
            if self._admission is not None:
                self._admission.close()
            self._context.destroy(linger=200)

    def send(self, key: bytes, header: wire.Header) -> None:
        """Send without waiting; who cannot be reached, or reads nothing, is dropped soon."""
        if header.get("type") == "granted":
            if header["address"] == RELAYED:
                header = {**header, "relay_port": self.relay_port}
            elif header["address"] == RELAYED_WEBSOCKET and self.entrance is not None:
                header = {**header, **self.entrance.way}
        packed = wire.pack(header)
        if key[:1] != _GIVEN_BY_US and self.entrance is not None:
            self.entrance.send(key, packed)
            return
        try:
            self._socket.send_multipart([key, packed], zmq.NOBLOCK)
        except zmq.ZMQError:
            self._unreachable.add(key)

    def open_relay(self, lease: Lease) -> None:
        """Let the lease's holder through to its device, where it needs that."""
        if lease.address == RELAYED:
            self._relay.allow(lease.id, lease.token)
        elif lease.address == RELAYED_WEBSOCKET and self.entrance is not None:
            self.entrance.allow(lease.id, lease.token)

    def close_relay(self, lease: Lease) -> None:
        """Cut what the lease's holder has open."""
        if lease.address == RELAYED:
            self._relay.cut(lease.id, lease.token)
        elif lease.address == RELAYED_WEBSOCKET and self.entrance is not None:
            self.entrance.cut(lease.id, lease.token)

    def _receive(self) -> bool:
        try:
            key, *parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        # What hangs on a connection would else be the next one's of the same name.
        if key.bytes[:1] != _GIVEN_BY_US:
            error = ProtocolError("a tracker's peer chooses no ZeroMQ routing id of its own")
            with suppress(zmq.ZMQError):
                reply = wire.pack({"type": "refused", "error": failure_to_wire(error)})
                self._socket.send_multipart([key.bytes, reply], zmq.NOBLOCK)
        else:
            self._take(self._sender(key.bytes, parts[0]), partial(_only_header, parts))
        return True

    def _take(self, sender: Sender, read: Callable[[], wire.Header]) -> None:
        """Take one message; what is wrong with it is told to its sender alone."""
        number = None
        try:
            header = read()
            number = header.get("request")
            self._registry.receive(sender, header)
        except Exception as error:
            if not isinstance(error, TapmlError):
                # A fault of ours must cost the one message, and must be seen.
                traceback.print_exc(file=sys.stderr)
            reply: wire.Header = {"type": "refused", "error": failure_to_wire(error)}
            if type(number) is int and 0 <= number <= wire.MAX_INTEGER:
                reply["request"] = number
            self.send(sender.key, reply)

    def _sender(self, key: bytes, frame: zmq.Frame) -> Sender:
        return Sender(key, client_identity(frame, self._curve), _host(frame))

    def _ask_to_dial(self, call: tuple[str, str, str], port: int) -> None:
        """Called by a relay on its own thread; port 0 stands for where the device came itself."""
        self._dials.append((*call, port))
        self._waker.wake()

    def _send_dials(self) -> None:
        while self._dials:
            lease_id, stream, role, port = self._dials.popleft()
            key = self._registry.leases.device_key(lease_id)
            if key is not None:
                dial = {"type": "dial", "lease": lease_id, "stream": stream, "role": role}
                self.send(key, {**dial, **({"relay_port": port} if port else {})})

    def _drain_monitor(self) -> bool:
        dropped = False
        with suppress(zmq.Again):
            while True:
                recv_monitor_message(self._monitor, zmq.NOBLOCK)
                dropped = True
        return dropped

    def _drop_unreachable(self) -> None:
        while self._unreachable:
            key = self._unreachable.pop()
            if key in self._registry.peers():
                self._registry.gone(key, "its connection dropped")
                self._registry.tick()


def _only_header(parts: list[zmq.Frame]) -> wire.Header:
    if len(parts) != 1:
        raise ProtocolError("a message to a tracker is one header")
    return wire.unpack(parts[0].bytes)


def _host(frame: zmq.Frame) -> str:
    """Where a message came from; libzmq says so itself, before the peer can."""
    host = str(frame.get("Peer-Address"))
    mapped = getattr(ipaddress.ip_address(host), "ipv4_mapped", None)
    return str(mapped or host)


def _free_beside(port: int, taken: int) -> int:
    """A relay's port beside the address's, with the WebSocket's `taken`; 0 where any is free."""
    if not port:
        return 0
    return port + 1 if port + 1 != taken else port + 2
