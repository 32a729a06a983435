"""A WebSocket connection as one side of a flow."""

from __future__ import annotations

import secrets
import socket
import ssl
from contextlib import suppress
from typing import Final

from websockets.frames import Close, CloseCode, Frame, Opcode

from tapml_rpc.tracker.flow import BUFFER_BYTES
from tapml_rpc.websocket.frames import MAX_MESSAGE_BYTES
from tapml_targets.errors import ProtocolError

try:
    from websockets.speedups import apply_mask
except ImportError:  # a board without a compiler, and no wheel for it
    from websockets.utils import apply_mask

GROWTH: Final = 3
"""The output is at most so many times the input: an empty frame of two bytes gets a mask."""
_KEY_BYTES: Final = 4
_MASKED: Final = 0x80
_FIN: Final = 0x80
_RESERVED: Final = 0x70
_CONTINUATION: Final = 0
_MESSAGES: Final = (1, 2)
_CLOSE: Final = 8
_CONTROLS: Final = (_CLOSE, 9, 10)
_MAX_CONTROL_BYTES: Final = 125
_EXTENDED: Final = {126: 2, 127: 8}


class Reframer:
    """One direction of a connection: masked frames in and unmasked out, or the other way."""

    def __init__(self, *, masked: bool) -> None:
        self._masked = masked
        self._head = bytearray()
        self._missing = 0
        self._key = b""
        self._message_bytes = 0
        self._open = False

    def feed(self, data: memoryview) -> bytes:
        """The same frames for the other side, as far as they have come.

        Raises ProtocolError for malformed frames, or a message longer than any peer accepts.
        """
        out: list[bytes] = []
        position = 0
        while position < len(data):
            if self._missing:
                piece = data[position : position + self._missing]
                out.append(self._turn(piece))
                position += len(piece)
                self._missing -= len(piece)
                continue
            wanted = self._head_bytes() - len(self._head)
            self._head += data[position : position + wanted]
            position += min(wanted, len(data) - position)
            if len(self._head) >= 2 and len(self._head) == self._head_bytes():
                out.append(self._next_head())
        return b"".join(out)

    def _head_bytes(self) -> int:
        return _head_bytes(self._head, masked=self._masked)

    def _next_head(self) -> bytes:
        first, second = self._head[0], self._head[1]
        length, extended = _length(self._head)
        self._check(first, length, masked=bool(second & _MASKED))
        if self._masked:
            self._key = bytes(self._head[-_KEY_BYTES:])
            out = bytes((first, second & 0x7F)) + extended
        else:
            self._key = secrets.token_bytes(_KEY_BYTES)
            out = bytes((first, second | _MASKED)) + extended + self._key
        self._missing = length
        self._head.clear()
        return out

    def _check(self, first: int, length: int, *, masked: bool) -> None:
        opcode, final = first & 0x0F, bool(first & _FIN)
        if first & _RESERVED or masked != self._masked:
            raise ProtocolError("a frame with reserved bits, or masked the wrong way")
        if opcode in _CONTROLS:
            if length > _MAX_CONTROL_BYTES or not final:
                raise ProtocolError("a control frame that is fragmented or has over 125 bytes")
            return
        if opcode not in (_CONTINUATION, *_MESSAGES) or (opcode == _CONTINUATION) != self._open:
            raise ProtocolError("a frame of an unknown kind, or out of turn")
        self._message_bytes = length + (self._message_bytes if self._open else 0)
        if self._message_bytes > MAX_MESSAGE_BYTES:
            raise ProtocolError(f"a message of over {MAX_MESSAGE_BYTES} bytes")
        self._open = not final

    def _turn(self, piece: memoryview) -> bytes:
        """Put a mask on, or take it off: the same operation."""
        turned = apply_mask(piece, self._key)
        begun = len(piece) % _KEY_BYTES
        self._key = self._key[begun:] + self._key[:begun]
        return turned


class Boundaries:
    """Follows sent frames, to know when none is half sent; `closed` after the last possible one."""

    def __init__(self, *, masked: bool) -> None:
        self.closed = False
        self._masked = masked
        self._head = bytearray()
        self._missing = 0

    @property
    def between(self) -> bool:
        """Whether another frame may be sent."""
        return not (self.closed or self._head or self._missing)

    def feed(self, data: memoryview) -> None:
        """Note what was sent; payload is skipped."""
        position = 0
        while position < len(data):
            if self._missing:
                step = min(self._missing, len(data) - position)
                position, self._missing = position + step, self._missing - step
                continue
            wanted = _head_bytes(self._head, masked=self._masked) - len(self._head)
            self._head += data[position : position + wanted]
            position += min(wanted, len(data) - position)
            if len(self._head) == _head_bytes(self._head, masked=self._masked):
                self.closed = self.closed or self._head[0] & 0x0F == _CLOSE
                self._missing = _length(self._head)[0]
                self._head.clear()


def _head_bytes(head: bytearray, *, masked: bool) -> int:
    """Bytes from such a head's beginning to its payload, as far as they are known."""
    if len(head) < 2:
        return 2
    return 2 + _EXTENDED.get(head[1] & 0x7F, 0) + (_KEY_BYTES if masked else 0)


def _length(head: bytearray) -> tuple[int, bytes]:
    """Bytes of a payload, and the bytes of the head that encode this beyond the second."""
    extended = bytes(head[2 : 2 + _EXTENDED.get(head[1] & 0x7F, 0)])
    return (int.from_bytes(extended) if extended else head[1] & 0x7F), extended


# The most that one TLS record brings. With less room nothing is read: no poll would see a part of a
# record that stays inside the TLS layer.
_RECORD_BYTES: Final = 16 << 10
_WHY: Final = "the lease is over, or the other end of the relay is gone"
_GOING_AWAY: Final = Frame(Opcode.CLOSE, Close(CloseCode.GOING_AWAY, _WHY).serialize())


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
                self._socket.send(_GOING_AWAY.serialize(mask=self._masked))
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
