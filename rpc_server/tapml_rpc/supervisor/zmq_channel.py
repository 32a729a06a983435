"""A ZeroMQ client's two connections, as its session and the front see them."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import zmq

_ZERO_COPY_BYTES: Final = 64 << 10

Socket = zmq.Socket[bytes]


class ZmqChannel:
    """A client on the two sockets; see :class:`tapml_rpc.supervisor.channel.Channel`.

    `data` is None before the first message of its data connection; a plain one is its worker's.
    """

    def __init__(self, control: RouterEnd) -> None:
        self.control = control
        self.data: RouterEnd | socket.socket | None = None

    def send_control(self, packed: bytes) -> bool:
        """Send a packed header on the control connection."""
        return self.control.send(packed)

    def send_data(
        self,
        packed: bytes,
        parts: Sequence[memoryview | bytes],
        sent: Callable[[], None] | None = None,
    ) -> bool:
        """Send a packed header and its chunk on the data connection."""
        return isinstance(self.data, RouterEnd) and self.data.send(packed, parts, sent)

    def settle(self) -> None:
        """Report payloads that have left."""
        if isinstance(self.data, RouterEnd):
            self.data.settle()


class RouterEnd:
    """A client on a ROUTER socket of libzmq, identified by its routing id."""

    def __init__(self, data: Socket, identity: bytes) -> None:
        self._data = data
        self._identity = identity
        self._unsent: deque[tuple[zmq.MessageTracker | None, Callable[[], None]]] = deque()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RouterEnd) and other._identity == self._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def send(
        self,
        packed: bytes,
        parts: Sequence[memoryview | bytes] = (),
        sent: Callable[[], None] | None = None,
    ) -> bool:
        """Send a packed header and its chunk."""
        tracker = None
        try:
            self._data.send(self._identity, zmq.SNDMORE | zmq.NOBLOCK)
            if not parts:
                self._data.send(packed, zmq.NOBLOCK)
            else:
                self._data.send(packed, zmq.SNDMORE | zmq.NOBLOCK)
                chunk = parts[0] if len(parts) == 1 else b"".join(parts)
                if len(chunk) < _ZERO_COPY_BYTES:
                    self._data.send(chunk, zmq.NOBLOCK)
                else:
                    tracker = self._data.send(chunk, zmq.NOBLOCK, copy=False, track=True)
        except zmq.ZMQError:
            return False
        if sent is not None:
            self._unsent.append((tracker, sent))
            self.settle()
        return True

    def settle(self) -> None:
        """Report payloads that libzmq has sent."""
        unsent = self._unsent
        while unsent and (unsent[0][0] is None or unsent[0][0].done):
            unsent.popleft()[1]()
