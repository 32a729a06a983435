"""Data connections on a ROUTER socket of libzmq: what CURVE needs."""

from __future__ import annotations

from contextlib import suppress
from selectors import EVENT_READ, BaseSelector
from typing import Any, Final

import zmq

from tapml_rpc import wire
from tapml_rpc.bounds import Bounds
from tapml_rpc.device_loop import bind_router
from tapml_rpc.security.curve import ServerCurve, client_identity
from tapml_rpc.supervisor.data_service import Desk, error_reply
from tapml_rpc.supervisor.zmq_channel import RouterEnd, Socket
from tapml_targets.errors import ProtocolError, TapmlError

# Messages taken from a socket before the others get their turn.
TURN: Final = 8
_NO_CHUNK: Final = memoryview(b"")


class RouterData:
    """The :class:`~tapml_rpc.supervisor.data_service.DataService` on a ROUTER.

    Parameters
    ----------
    context, address, bounds, heartbeats, curve
        As :func:`tapml_rpc.device_loop.bind_router` takes them.
    desk, selector
        The front's.
    """

    def __init__(
        self,
        desk: Desk,
        selector: BaseSelector,
        context: zmq.Context[Socket],
        address: str,
        bounds: Bounds,
        heartbeats: bool,
        curve: ServerCurve | None,
    ) -> None:
        self._desk = desk
        self._curve = curve
        self._socket = bind_router(context, address, bounds, heartbeats, curve=curve)
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
        """See the protocol: libzmq has its own clocks."""

    def close(self) -> None:
        """See the protocol."""
        self._socket.close(linger=200)

    def _take(self, frames: list[Any]) -> None:
        header = None
        try:
            identity, packed, chunk = split(frames)
            header = wire.unpack(packed)
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


def take(socket: Socket) -> list[Any] | None:
    """Take one message off a ROUTER, the sender's identity first; None where none is there."""
    try:
        frames: list[Any] = [socket.recv(zmq.NOBLOCK, copy=False)]
    except zmq.Again:
        return None
    while socket.getsockopt(zmq.RCVMORE):
        # A header is copied; a chunk stays where libzmq has it.
        frames.append(socket.recv(copy=len(frames) == 1))
    return frames


def split(frames: list[Any]) -> tuple[zmq.Frame, bytes, memoryview]:
    """The identity, the header and the chunk of a message.

    Raises
    ------
    ProtocolError
        If it has more frames, or fewer.
    """
    if not 2 <= len(frames) <= 3:
        raise ProtocolError("a message is a header and at most a chunk")
    return frames[0], frames[1], frames[2].buffer if len(frames) == 3 else _NO_CHUNK
