"""Where devices and clients reach a tracker by ``tcp://``: one ROUTER of libzmq."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from selectors import EVENT_READ
from typing import Final, Protocol

import zmq
from zmq.utils.monitor import recv_monitor_message

from tapml_rpc import wire
from tapml_rpc.security.curve import Authenticator, ServerCurve, apply_server, client_identity
from tapml_rpc.tracker.records import MAX_MESSAGE_BYTES, Sender
from tapml_rpc.tracker.zmq_connection import Socket, set_heartbeats
from tapml_rpc.websocket.flow import Forwarder
from tapml_targets.errors import ProtocolError

_MESSAGES_AT_ONCE: Final = 64
_GIVEN_BY_US: Final = b"\0"


class Handler(Protocol):
    """Handles incoming messages: the tracker."""

    def take(self, sender: Sender, read: Callable[[], wire.Header]) -> bool:
        """Take a message; False if it was refused.

        Faults of the message, and of `read`, are reported to its sender.
        """

    def gone(self, key: bytes, why: str) -> None:
        """A connection is gone; what depends on it ends."""

    def probe(self) -> None:
        """Send something on every connection that something depends on."""


class Entrance:
    """Listens at ``tcp://host:port`` and passes messages to its handler.

    Runs on the tracker's thread; nothing in it waits. The port ``*`` takes a free one. With `curve`
    it admits the listed keys. Raises OSError if the address cannot be used.
    """

    def __init__(
        self, handler: Handler, forwarder: Forwarder, address: str, curve: ServerCurve | None
    ) -> None:
        self._handler = handler
        self._curve = curve
        self._unreachable: set[bytes] = set()
        self._context: zmq.Context[Socket] = zmq.Context()
        self._admission = None if curve is None else Authenticator(self._context, curve.clients)
        try:
            socket = self._socket = self._context.socket(zmq.ROUTER)
            socket.linger = 0
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            socket.setsockopt(zmq.HANDSHAKE_IVL, 3000)
            socket.setsockopt(zmq.RCVHWM, 64)
            socket.setsockopt(zmq.SNDHWM, 256)
            socket.setsockopt(zmq.IPV6, int("[" in address))
            set_heartbeats(socket)
            apply_server(socket, curve)
            self._monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            socket.bind(address)
        except BaseException as error:
            self._end(linger=0)
            if isinstance(error, zmq.ZMQError):
                raise OSError(error.errno, error.strerror) from None
            raise
        self.address = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        # Readable when a socket's state has changed: serve() finds out how.
        for source in (socket, self._monitor):
            forwarder.watch(source.fileno(), EVENT_READ, lambda events: None)

    def serve(self) -> None:
        """Hand over what has come, and which connections are gone."""
        for _ in range(_MESSAGES_AT_ONCE):
            if not self._receive():
                break
        if self._has_dropped():
            # libzmq does not say whose connection that was: those that cannot be sent to.
            self._handler.probe()
        while self._unreachable:
            self._handler.gone(self._unreachable.pop(), "its connection dropped")

    def pending(self) -> bool:
        """Whether :meth:`serve` has something to do though nothing more may come."""
        sources = (self._socket, self._monitor)
        return bool(self._unreachable) or any(
            int(source.getsockopt(zmq.EVENTS)) & zmq.POLLIN for source in sources
        )

    def send(self, key: bytes, packed: bytes) -> None:
        """Send a header without waiting; an unreachable peer is soon reported as gone."""
        try:
            self._socket.send_multipart([key, packed], zmq.NOBLOCK)
        except zmq.ZMQError:
            self._unreachable.add(key)

    def close(self) -> None:
        """Close the socket."""
        self._socket.disable_monitor()
        self._socket.close(linger=200)
        self._end(linger=200)

    def _end(self, linger: int) -> None:
        if self._admission is not None:
            self._admission.close()
        self._context.destroy(linger=linger)

    def _receive(self) -> bool:
        try:
            key, *parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        read: Callable[[], wire.Header] = partial(header_of, parts[0].bytes, len(parts))
        if key.bytes[:1] != _GIVEN_BY_US:
            read = no_name_of_its_own
        identity = client_identity(parts[0], self._curve)
        self._handler.take(Sender(key.bytes, identity, _host(parts[0])), read)
        return True

    def _has_dropped(self) -> bool:
        dropped = False
        with suppress(zmq.Again):
            while True:
                recv_monitor_message(self._monitor, zmq.NOBLOCK)
                dropped = True
        return dropped


def _host(frame: zmq.Frame) -> str:
    """A message's remote address, which libzmq adds before the peer can."""
    host = str(frame.get("Peer-Address"))
    mapped = getattr(ipaddress.ip_address(host), "ipv4_mapped", None)
    return str(mapped or host)


def header_of(packed: bytes | memoryview, frames: int) -> wire.Header:
    """The header of a message of `frames` frames.

    Raises ProtocolError if malformed or not one frame.
    """
    if frames != 1:
        raise ProtocolError("a message to a tracker is one header")
    return wire.unpack(packed)


def no_name_of_its_own() -> wire.Header:
    """Raise ProtocolError for a peer with its own routing id.

    Otherwise what depends on a connection would belong to the next one of the same name.
    """
    raise ProtocolError("a tracker's peer chooses no ZeroMQ routing id of its own")
