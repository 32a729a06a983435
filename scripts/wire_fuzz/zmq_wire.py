"""The ZeroMQ binding, spoken by hand."""

from __future__ import annotations

from typing import Final

import zmq

from scripts.wire_fuzz.messages import Socket
from tapml_rpc.security.curve import ClientCurve, apply_client

_SEND_MILLISECONDS: Final = 5000


class ZmqWire:
    """Two DEALER sockets; satisfies :class:`scripts.wire_fuzz.peer.Wire`."""

    # A broken connection comes back by itself.
    closed = False

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, curve: ClientCurve | None
    ) -> None:
        self._context = context
        self._curve = curve
        self._poller = zmq.Poller()
        self._sockets: dict[Socket, zmq.Socket[bytes]] = {}
        self._connect("control", address)

    def open_data(self, address: str) -> None:
        """Connect the data socket."""
        self._connect("data", address)

    def send(self, socket: Socket, frames: tuple[bytes, ...]) -> bool:
        """Send a multipart message."""
        try:
            self._sockets[socket].send_multipart(frames)
        except zmq.Again:
            return False
        return True

    def receive(self, seconds: float) -> list[tuple[Socket, bytes]]:
        """The first frames of what came."""
        found: list[tuple[Socket, bytes]] = []
        if not self._poller.poll(round(seconds * 1000)):
            return found
        for name, socket in self._sockets.items():
            while True:
                try:
                    found.append((name, socket.recv_multipart(zmq.NOBLOCK)[0]))
                except zmq.Again:
                    break
        return found

    def close(self) -> None:
        """Drop both connections."""
        for socket in self._sockets.values():
            socket.close(linger=0)

    def _connect(self, name: Socket, address: str) -> None:
        socket = self._context.socket(zmq.DEALER)
        socket.sndtimeo = _SEND_MILLISECONDS
        apply_client(socket, self._curve)
        socket.connect(address)
        self._sockets[name] = socket
        self._poller.register(socket, zmq.POLLIN)
