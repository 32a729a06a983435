"""A WebSocket connection as one side of a flow."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import Final

from websockets.frames import Close, CloseCode, Frame, Opcode

from tapml_rpc.tracker.flow import BUFFER_BYTES
from tapml_rpc.tracker.reframing import GROWTH, Boundaries, Reframer
from tapml_targets.errors import ProtocolError

# The most that one TLS record brings. With less room nothing is read: no poll would see a part of a
# record that stays inside the TLS layer.
_RECORD_BYTES: Final = 16 << 10
_WHY: Final = "the lease is over, or the other end of the relay is gone"
_CLOSE: Final = Frame(Opcode.CLOSE, Close(CloseCode.GOING_AWAY, _WHY).serialize())


class WebSocketEndpoint:
    """The :class:`tapml_rpc.tracker.flow.Endpoint` of an upgraded connection, which it owns.

    The connection is non-blocking, at the first byte of a frame, with TLS or without. `masked`: its
    peer masks, true at a server's end.
    """

    def __init__(self, connection: socket.socket, *, masked: bool) -> None:
        self._socket = connection
        self._masked = not masked
        self._encrypted = isinstance(connection, ssl.SSLSocket)
        self._reframer = Reframer(masked=masked)
        self._sent = Boundaries(masked=not masked)
        self._memory = memoryview(bytearray(BUFFER_BYTES // GROWTH))

    def fileno(self) -> int:
        """What a poller takes."""
        return self._socket.fileno()

    def recv_into(self, buffer: memoryview, /) -> int:
        """Frames for the flow's other side, read into a flow's `buffer`."""
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
        """Send the beginning of `data`; how much."""
        try:
            taken = self._socket.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        self._sent.feed(data[:taken])
        return taken

    def close(self) -> None:
        """End it, with a goodbye if none of its frames is half sent."""
        with suppress(OSError):
            if self._sent.between:
                self._socket.send(_CLOSE.serialize(mask=self._masked))
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
