"""Control connections: hello, heartbeats and cancellation, each a header of its own.

Without encryption they are sockets of ours, as data connections are (:class:`PlainData` listens);
where clients have keys, one ROUTER of libzmq.
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
from tapml_rpc.supervisor.plain_connection import (
    STRANGER_REFUSALS,
    STRANGER_SECONDS,
    unpack_short,
)
from tapml_rpc.supervisor.router_data import TURN
from tapml_rpc.supervisor.zmq_channel import DataEnd, RouterEnd, Socket
from tapml_rpc.zmtp.peer import Peer
from tapml_targets.errors import ProtocolError

# Heartbeats and a welcome are short: behind so much nobody reads.
_MOST_UNSENT_BYTES: Final = 1 << 20


class ControlDesk(Protocol):
    """Who hears what comes on control: the front."""

    def hear(self, end: DataEnd, who: str, header: wire.Header) -> None:
        """Take a message; what is wrong with it is raised."""

    def refuse(self, end: DataEnd, error: Exception) -> None:
        """Tell a peer what was wrong with a message."""

    def controls(self, end: DataEnd) -> bool:
        """Whether a session that has not ended has this control connection."""

    def control_gone(self, end: DataEnd, why: str) -> None:
        """End the session of a control connection that is gone."""


class ControlConnection:
    """A plain control connection; see :class:`tapml_rpc.zmtp.listener.Connection`."""

    def __init__(self, desk: ControlDesk, accepted: socket.socket) -> None:
        self.peer = Peer(accepted, time.monotonic(), _nowhere)
        self.peer.bound_headers(wire.MAX_STRANGER_BYTES)
        self._desk = desk
        self._light = self.peer.opened
        self._refusals = 0

    def has_session(self) -> bool:
        """See the protocol."""
        return self._desk.controls(self.peer)

    def lingers(self, now: float) -> bool:
        """See the protocol; here also one with a session, which has nothing to keep."""
        if not self.peer.holds:
            self._light = now
        return now - self._light > STRANGER_SECONDS

    def take(self) -> bool:
        """See the protocol."""
        message = self.peer.next()
        if message is None:
            return False
        packed, _, frames = message
        try:
            if frames > 2:
                raise ProtocolError("a message is a header and at most a chunk")
            self._desk.hear(self.peer, LOOPBACK_IDENTITY, unpack_short(packed))
        except Exception as error:
            self._refuse(error)
        if self.peer.unsent_bytes > _MOST_UNSENT_BYTES:
            self.peer.close()
        return True

    def end(self, error: Exception | None = None) -> socket.socket | None:
        """See the protocol."""
        parting = None
        if isinstance(error, ProtocolError):
            self._refuse(error)
            parting = self.peer.part()
        self.peer.release()
        self._desk.control_gone(self.peer, "its control connection is gone")
        return parting

    def _refuse(self, error: Exception) -> None:
        self._refusals = 0 if self.has_session() else self._refusals + 1
        if self._refusals > STRANGER_REFUSALS:
            self.peer.close()
        else:
            self._desk.refuse(self.peer, error)


class RouterControl:
    """Control on a ROUTER of libzmq, a :class:`tapml_rpc.supervisor.data_service.DataService`.

    Parameters
    ----------
    desk, selector
        The front's.
    context, address, bounds, heartbeats, curve
        As :func:`tapml_rpc.router.bind_router` takes them.
    """

    def __init__(
        self,
        desk: ControlDesk,
        selector: BaseSelector,
        context: zmq.Context[Socket],
        address: str,
        bounds: Bounds,
        heartbeats: bool,
        curve: ServerCurve,
    ) -> None:
        self._desk = desk
        self._curve = curve
        self._socket, self._watch = bind_router(context, address, bounds, heartbeats, curve)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        # Readable when the socket's state has changed: serve() looks what it is.
        selector.register(self._socket.fileno(), EVENT_READ)

    def serve(self) -> bool:
        """See the protocol."""
        for _ in range(TURN):
            frames = take(self._socket)
            if frames is None:
                return False
            end = RouterEnd(self._socket, frames[0].bytes)
            try:
                self._watch.heard(frames[0])
                identity, packed, _ = split(frames)
                who = client_identity(identity, self._curve)
                self._desk.hear(end, who, unpack_control(packed))
            except Exception as error:
                self._desk.refuse(end, error)
        return True

    def check(self, now: float) -> None:
        """See the protocol; libzmq has its own clocks."""
        for identity in self._watch.gone():
            end = RouterEnd(self._socket, identity)
            self._desk.control_gone(end, f"its control connection {GONE}")

    def close(self) -> None:
        """See the protocol."""
        self._watch.close()
        self._socket.close(linger=200)


def _nowhere(packed: bytes, nbytes: int) -> None:
    """Nothing on control has a chunk."""
