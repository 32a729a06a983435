"""A WebSocket connection as one side of a flow."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from typing import Final

from websockets.frames import Close, CloseCode, Frame, Opcode

from tapml_rpc.flow import BUFFER_BYTES, receive_into, send
from tapml_rpc.websocket import framing
from tapml_rpc.websocket.framing import FrameReader, Mask
from tapml_targets.errors import ProtocolError

GROWTH: Final = 3
"""The output is at most so many times the input: an empty frame of two bytes gets a mask."""
_HEAD_BYTES: Final = 14
"""The longest head of a frame; all but its last byte may have come before the rest."""


class Reframer:
    """One direction of a connection: masked frames in and unmasked out, or the other way."""

    def __init__(self, *, masked: bool) -> None:
        self._masked = masked
        self._reader = FrameReader(masked=masked)
        self._mask = Mask(bytes(framing.KEY_BYTES))

    def feed(self, data: memoryview) -> bytes:
        """The frames that have come, for the other side; raises ProtocolError."""
        out: list[bytes] = []
        for piece in self._reader.feed(data):
            if piece.head:
                out.append(self._other_head(piece.head))
            if piece.payload:
                out.append(self._mask.turn(piece.payload))
        return b"".join(out)

    def _other_head(self, head: bytes) -> bytes:
        if self._masked:
            self._mask = Mask(head[-framing.KEY_BYTES :])
            return bytes((head[0], head[1] & 0x7F)) + head[2 : -framing.KEY_BYTES]
        key = secrets.token_bytes(framing.KEY_BYTES)
        self._mask = Mask(key)
        return bytes((head[0], head[1] | framing.MASKED)) + head[2:] + key


_WHY: Final = "the lease is over, or the other end of the relay is gone"
_GOING_AWAY: Final = Frame(Opcode.CLOSE, Close(CloseCode.GOING_AWAY, _WHY).serialize())


class WebSocketEndpoint:
    """The :class:`tapml_rpc.flow.Endpoint` of an upgraded connection, which it owns.

    The connection is non-blocking, at the first byte of a frame, with TLS or without. `masked`: its
    peer masks, true at a server's end.
    """

    def __init__(self, connection: socket.socket, *, masked: bool) -> None:
        self._socket = connection
        self._masked = not masked
        self._reframer = Reframer(masked=masked)
        # Follows what is sent, to know when no frame is half sent; none may follow a close.
        self._sent = FrameReader(masked=not masked)
        self._closed = False
        self._memory = memoryview(bytearray(BUFFER_BYTES // GROWTH - _HEAD_BYTES))

    def fileno(self) -> int:
        """What a poller takes."""
        return self._socket.fileno()

    def recv_into(self, buffer: memoryview, /) -> int:
        """Frames for the flow's other side, read into a flow's `buffer`."""
        count = receive_into(self._socket, self._memory)
        if count is None:
            raise BlockingIOError
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
        taken = send(self._socket, data)
        if not taken:
            raise BlockingIOError
        for piece in self._sent.feed(data[:taken]):
            self._closed = self._closed or piece.first & 0x0F == framing.CLOSE
        return taken

    def close(self) -> None:
        """End it, with a goodbye if none of its frames is half sent."""
        with suppress(OSError):
            if self._sent.between and not self._closed:
                self._socket.send(_GOING_AWAY.serialize(mask=self._masked))
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
