"""Data connections on a ROUTER socket of libzmq: what CURVE needs."""

from __future__ import annotations

from contextlib import suppress
from selectors import EVENT_READ, BaseSelector
from typing import Any, Final, Protocol

import zmq

from tapml_rpc import wire
from tapml_rpc.bounds import Bounds
from tapml_rpc.router import GONE, bind_router, check_chunk, split, take
from tapml_rpc.security.curve import ServerCurve, client_identity
from tapml_rpc.supervisor.data_service import Desk, error_reply
from tapml_rpc.supervisor.zmq_channel import DataEnd, RouterEnd, Socket
from tapml_targets.errors import TapmlError

# Messages taken from a socket before the others get their turn.
TURN: Final = 8


class RouterDesk(Desk, Protocol):
    """The front, which knows a session's connections."""

    def data_gone(self, end: DataEnd, why: str) -> None:
        """End the session of a data connection that is gone."""


class RouterData:
    """The :class:`~tapml_rpc.supervisor.data_service.DataService` on a ROUTER.

    Parameters
    ----------
    context, address, bounds, heartbeats, curve
        As :func:`tapml_rpc.router.bind_router` takes them.
    desk, selector
        The front's.
    """

    def __init__(
        self,
        desk: RouterDesk,
        selector: BaseSelector,
        context: zmq.Context[Socket],
        address: str,
        bounds: Bounds,
        heartbeats: bool,
        curve: ServerCurve | None,
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
            self._take(frames)
        return True

    def check(self, now: float) -> None:
        """See the protocol; libzmq has its own clocks."""
        for identity in self._watch.gone():
            end = RouterEnd(self._socket, identity)
            self._desk.data_gone(end, f"its data connection {GONE}")

    def close(self) -> None:
        """See the protocol."""
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
            relay, channel = self._desk.claim(header, client_identity(identity, self._curve), end)
            # Room in the ring before the worker is told of more that needs some.
            channel.settle()
            relay.accept(header, packed, chunk)
            self._desk.settle(relay)
        except Exception as error:
            if not isinstance(error, TapmlError):
                self._desk.show(error)
            reply = error_reply(error, header)
            with suppress(zmq.ZMQError):
                self._socket.send_multipart([frames[0].bytes, reply], zmq.NOBLOCK)
