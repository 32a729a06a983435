"""Data connections on a ROUTER socket of libzmq, which CURVE needs."""

from __future__ import annotations

from contextlib import suppress
from selectors import EVENT_READ, BaseSelector
from typing import Any, Final, Protocol

import zmq

from tapml_rpc import wire
from tapml_rpc.bounds import Bounds
from tapml_rpc.refusals import error_reply
from tapml_rpc.router import GONE, bind_router, check_chunk, split, take
from tapml_rpc.security.curve import ServerCurve, client_identity
from tapml_rpc.supervisor.data_service import DataFront
from tapml_rpc.supervisor.zmq_channel import End, RouterEnd, Socket
from tapml_targets.errors import TapmlError

# Messages taken from a socket before the others get their turn.
TURN: Final = 8


class RouterFront(DataFront, Protocol):
    """The front, which knows the connections of a session."""

    def data_gone(self, end: End, why: str) -> None:
        """End the session of a data connection that is gone."""


class RouterData:
    """The :class:`~tapml_rpc.supervisor.data_service.DataService` on a ROUTER.

    Socket arguments are those of :func:`tapml_rpc.router.bind_router`.
    """

    def __init__(
        self,
        front: RouterFront,
        selector: BaseSelector,
        context: zmq.Context[Socket],
        address: str,
        bounds: Bounds,
        heartbeats: bool,
        curve: ServerCurve | None,
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
            self._take(frames)
        return True

    def check(self, now: float) -> None:
        """Nothing to check: libzmq has its own clocks."""
        for identity in self._watch.gone():
            end = RouterEnd(self._socket, identity)
            self._front.data_gone(end, f"its data connection {GONE}")

    def close(self) -> None:
        """Close the socket."""
        self._watch.close()
        self._socket.close(linger=200)

    def _take(self, frames: list[Any]) -> None:
        header = None
        try:
            self._watch.heard(frames[0])
            identity, packed, chunk = split(frames)
            header = wire.unpack(packed)
            check_chunk(chunk)
            end = RouterEnd(self._socket, identity.bytes)
            relay, channel = self._front.claim(header, client_identity(identity, self._curve), end)
            # Room in the ring comes before the messages that need it.
            channel.settle()
            relay.accept(header, packed, chunk)
            self._front.settle(relay)
        except Exception as error:
            if not isinstance(error, TapmlError):
                self._front.show(error)
            reply = error_reply(error, header)
            with suppress(zmq.ZMQError):
                self._socket.send_multipart([frames[0].bytes, reply], zmq.NOBLOCK)
