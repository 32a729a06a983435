"""Control connections: hello, heartbeats and cancellation, each a header without a chunk.

Without encryption they are sockets of ours;
with client keys they share one ROUTER of libzmq.
"""

from __future__ import annotations

import socket
import time
from selectors import EVENT_READ, BaseSelector
from typing import Final, Protocol

import zmq

from tapml_rpc import wire
from tapml_rpc.bounds import Bounds
from tapml_rpc.router import GONE, bind_router, split, take, unpack_control
from tapml_rpc.security.curve import ServerCurve, client_identity
from tapml_rpc.security.standing import LOOPBACK_IDENTITY
from tapml_rpc.supervisor.plain_connection import unpack_short
from tapml_rpc.supervisor.router_data import TURN
from tapml_rpc.supervisor.zmq_channel import End, RouterEnd, Socket
from tapml_rpc.zmtp.listener import STRANGER_REFUSALS, STRANGER_SECONDS
from tapml_rpc.zmtp.peer import Peer
from tapml_targets.errors import ProtocolError

# Heartbeats and a welcome are short: a peer with so much unsent does not read.
_MOST_UNSENT_BYTES: Final = 1 << 20


class ControlFront(Protocol):
    """Handles messages on control connections: the front."""

    def hear(self, end: End, who: str, header: wire.Header) -> None:
        """Handle a message; its faults are raised."""

    def refuse(self, end: End, error: Exception) -> None:
        """Report to a peer what was wrong with a message."""

    def controls(self, end: End) -> bool:
        """Whether a session that has not ended has this control connection."""

    def control_gone(self, end: End, why: str) -> None:
        """End the session of a control connection that is gone."""


class ControlConnection:
    """A plain control connection; see :class:`tapml_rpc.zmtp.listener.Connection`."""

    def __init__(self, front: ControlFront, accepted: socket.socket) -> None:
        self.peer = Peer(accepted, time.monotonic())
        self.peer.bound_headers(wire.MAX_STRANGER_BYTES)
        self._front = front
        self._light = self.peer.opened
        self._refusals = 0

    def has_session(self) -> bool:
        """Whether it is the control connection of a session that has not ended."""
        return self._front.controls(self.peer)

    def lingers(self, now: float) -> bool:
        """Whether it has kept memory for too long, with or without a session."""
        if not self.peer.holds:
            self._light = now
        return now - self._light > STRANGER_SECONDS

    def take(self) -> bool:
        """Handle a message, if one has come."""
        message = self.peer.next()
        if message is None:
            return False
        packed, _, frames = message
        try:
            if frames > 2:
                raise ProtocolError("a message is a header and at most a chunk")
            self._front.hear(self.peer, LOOPBACK_IDENTITY, unpack_short(packed))
        except Exception as error:
            self._refuse(error)
        if self.peer.unsent_bytes > _MOST_UNSENT_BYTES:
            self.peer.close()
        return True

    def end(self, error: Exception | None = None) -> socket.socket | None:
        """End the sessions of this connection."""
        parting = None
        if isinstance(error, ProtocolError):
            self._refuse(error)
            parting = self.peer.part()
        self.peer.release()
        self._front.control_gone(self.peer, "its control connection is gone")
        return parting

    def _refuse(self, error: Exception) -> None:
        self._refusals = 0 if self.has_session() else self._refusals + 1
        if self._refusals > STRANGER_REFUSALS:
            self.peer.close()
        else:
            self._front.refuse(self.peer, error)


class RouterControl:
    """Control on a ROUTER of libzmq, a :class:`tapml_rpc.supervisor.data_service.DataService`.

    Socket arguments are those of :func:`tapml_rpc.router.bind_router`.
    """

    def __init__(
        self,
        front: ControlFront,
        selector: BaseSelector,
        context: zmq.Context[Socket],
        address: str,
        bounds: Bounds,
        heartbeats: bool,
        curve: ServerCurve,
    ) -> None:
        self._front = front
        self._curve = curve
        self._socket, self._watch = bind_router(context, address, bounds, heartbeats, curve)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        # Readable when the socket's state has changed; serve() finds out how.
        selector.register(self._socket.fileno(), EVENT_READ)

    def serve(self) -> bool:
        """Handle waiting messages; True if there are more."""
        for _ in range(TURN):
            frames = take(self._socket)
            if frames is None:
                return False
            end = RouterEnd(self._socket, frames[0].bytes)
            try:
                self._watch.heard(frames[0])
                identity, packed, _ = split(frames)
                who = client_identity(identity, self._curve)
                self._front.hear(end, who, unpack_control(packed))
            except Exception as error:
                self._front.refuse(end, error)
        return True

    def check(self, now: float) -> None:
        """Nothing to check: libzmq has its own clocks."""
        for identity in self._watch.gone():
            end = RouterEnd(self._socket, identity)
            self._front.control_gone(end, f"its control connection {GONE}")

    def close(self) -> None:
        """Close the socket."""
        self._watch.close()
        self._socket.close(linger=200)
