"""A WebSocket connection as one side of a flow."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import Final

from tapml_rpc.tracker.flow import BUFFER_BYTES
from tapml_rpc.tracker.reframing import GROWTH, Reframer
from tapml_targets.errors import ProtocolError

# What one TLS record brings at most. Where less room is left nothing is read: a part of a record
# that stays inside the TLS layer would be seen by no poll.
_RECORD_BYTES: Final = 16 << 10


class WebSocketLeg:
    """The :class:`tapml_rpc.tracker.flow.Leg` of a connection that has been upgraded.

    Parameters
    ----------
    connection
        Non-blocking, at the first byte of a frame, TLS or not; this object's from now on.
    masked
        Whether its peer masks: True at a server's end.
    """

    def __init__(self, connection: socket.socket, *, masked: bool) -> None:
        self._socket = connection
        self._encrypted = isinstance(connection, ssl.SSLSocket)
        self._reframer = Reframer(masked=masked)
        self._memory = memoryview(bytearray(BUFFER_BYTES // GROWTH))

    def fileno(self) -> int:
        """See :class:`~tapml_rpc.tracker.flow.Leg`."""
        return self._socket.fileno()

    def recv_into(self, buffer: memoryview, /) -> int:
        """Frames as the flow's other side has them; `buffer` is a flow's."""
        count = self._receive()
        if not count:
            return 0
        try:
            data = self._reframer.feed(self._memory[:count])
        except ProtocolError as error:
            raise ConnectionAbortedError(str(error)) from None
        if not data:
            raise BlockingIOError
        buffer[: len(data)] = data
        return len(data)

    def send(self, data: memoryview, /) -> int:
        """See :class:`~tapml_rpc.tracker.flow.Leg`."""
        try:
            return self._socket.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def close(self) -> None:
        """See :class:`~tapml_rpc.tracker.flow.Leg`."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _receive(self) -> int:
        if not self._encrypted:
            return self._socket.recv_into(self._memory)
        filled = 0
        try:
            while len(self._memory) - filled >= _RECORD_BYTES:
                count = self._socket.recv_into(self._memory[filled:])
                if not count:
                    break
                filled += count
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not filled:
                raise BlockingIOError from None
        return filled
