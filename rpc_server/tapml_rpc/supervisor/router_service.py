"""ROUTER sockets of libzmq on the front's thread: control, and the data of clients with keys."""

from __future__ import annotations

from collections.abc import Callable
from selectors import EVENT_READ, BaseSelector
from typing import Final

import zmq

from tapml_rpc.bounds import Bounds
from tapml_rpc.router import bind_router, split, take
from tapml_rpc.security.curve import ServerCurve, client_identity
from tapml_rpc.supervisor.zmq_channel import RouterEnd, Socket

# Messages taken from a socket before the others get their turn.
_TURN: Final = 8

Take = Callable[[RouterEnd, str, bytes, memoryview], None]
"""Handles a message: its connection, its client's identity, its header and its chunk."""


class RouterService:
    """A ROUTER at `address`: hands messages to `take`, and connections that are gone to `gone`.

    What `take` raises, and a message that is none, is told its sender by `refuse`. The other
    arguments are those of :func:`tapml_rpc.router.bind_router`.
    """

    def __init__(
        self,
        selector: BaseSelector,
        context: zmq.Context[Socket],
        address: str,
        bounds: Bounds,
        *,
        heartbeats: bool,
        curve: ServerCurve | None,
        take: Take,
        refuse: Callable[[RouterEnd, Exception], None],
        gone: Callable[[RouterEnd], None],
    ) -> None:
        self._curve = curve
        self._take = take
        self._refuse = refuse
        self._gone = gone
        self._socket, self._watch = bind_router(context, address, bounds, heartbeats, curve)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        # Readable when the socket's state has changed; serve() finds out how.
        selector.register(self._socket.fileno(), EVENT_READ)

    def serve(self) -> bool:
        """Handle waiting messages; True if there are more."""
        for _ in range(_TURN):
            frames = take(self._socket)
            if frames is None:
                return False
            end = RouterEnd(self._socket, frames[0].bytes)
            try:
                self._watch.heard(frames[0])
                identity, packed, chunk = split(frames)
                self._take(end, client_identity(identity, self._curve), packed, chunk)
            except Exception as error:
                self._refuse(end, error)
        return True

    def check(self, now: float) -> None:
        """Report connections that are gone; libzmq has its own clocks."""
        for identity in self._watch.gone():
            self._gone(RouterEnd(self._socket, identity))

    def close(self) -> None:
        """Close the socket."""
        self._watch.close()
        self._socket.close(linger=200)
