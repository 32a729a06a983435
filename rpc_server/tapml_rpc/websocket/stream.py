"""The client's end of one WebSocket connection.

A payload is masked once, a piece at a time while it is in the processor's cache.
"""

from __future__ import annotations

import secrets
import select
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from websockets.frames import Close

from tapml_rpc.stream import ReadAhead, SocketStream
from tapml_rpc.transport import Check, EndedError
from tapml_rpc.websocket import frames, framing
from tapml_rpc.websocket.frames import MAX_MESSAGE_BYTES
from tapml_rpc.websocket.framing import FrameOrder, Mask
from tapml_targets.errors import ProtocolError

_AHEAD_BYTES: Final = 16 << 10
_FIRST_BYTES: Final = 64 << 10
_POLL_MILLISECONDS: Final = 50


class Incoming(ReadAhead):
    """The receiving half of a non-blocking socket, TLS or not; `answer` sends a pong."""

    def __init__(self, connection: socket.socket, answer: Callable[[bytes], None]) -> None:
        super().__init__(connection, _AHEAD_BYTES)
        self._answer = answer
        self._order = FrameOrder(masked=False)
        # The message that is arriving: memory[:filled], and what its frame still has to bring.
        self._memory = bytearray(_FIRST_BYTES)
        self._filled = 0
        self._missing = 0
        self._final = False

    def next(self) -> memoryview | None:
        """The next message, in memory that the next call reuses; None if incomplete."""
        while True:
            if not self._missing and not self._open_frame():
                return None
            while self._missing:
                end = self._filled + self._missing
                taken = self._take_into(memoryview(self._memory)[self._filled : end])
                if not taken:
                    return None
                self._filled += taken
                self._missing -= taken
            if self._final:
                return memoryview(self._memory)[: self._filled]

    def forget(self) -> None:
        """Release what has arrived; the connection has ended."""
        self._memory = bytearray()
        self._start = self._end = self._filled = self._missing = 0

    def _open_frame(self) -> bool:
        """Read the head of the next frame with payload; False if none has come."""
        while True:
            if not self._have(2):
                return False
            size = framing.head_bytes(self._ahead, self._start, self._end)
            if not self._have(size):
                return False
            first, second = self._ahead[self._start], self._ahead[self._start + 1]
            nbytes = framing.payload_bytes(self._ahead, self._start)
            opcode = first & 0x0F
            if opcode == framing.TEXT:
                raise ProtocolError("the server sent a text message; messages are binary")
            if opcode < framing.CLOSE:
                self._check(first, second, nbytes)
                if opcode:
                    self._filled = 0
                self._start += size
                self._final, self._missing = bool(first & framing.FIN), nbytes
                self._make_room(self._filled + nbytes)
                return True
            self._check(first, second, nbytes)
            if not self._have(size + nbytes):
                return False
            self._start += size
            self._control(opcode, self._pop(nbytes))

    def _check(self, first: int, second: int, nbytes: int) -> None:
        try:
            self._order.check(first, second, nbytes)
        except ProtocolError as error:
            raise ProtocolError(f"the server sent {error}") from None

    def _make_room(self, size: int) -> None:
        if size > len(self._memory):
            # What a caller still reads keeps the old memory.
            larger = bytearray(min(max(size, 2 * len(self._memory)), MAX_MESSAGE_BYTES))
            larger[: self._filled] = memoryview(self._memory)[: self._filled]
            self._memory = larger

    def _is_for_later(self, error: Exception) -> bool:
        if isinstance(error, ssl.SSLWantWriteError):
            # TLS must send something first.
            room = select.poll()
            room.register(self._socket, select.POLLOUT)
            room.poll(_POLL_MILLISECONDS)
            return True
        return isinstance(error, ssl.SSLWantReadError)

    def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == framing.PING:
            self._answer(payload)
        elif opcode == framing.CLOSE:
            try:
                said = str(Close.parse(payload))
            except Exception:
                said = "without a reason that can be read"
            raise EndedError(f"the server closed the connection: {said}")


# Payload bytes of one frame: both ends mask and copy them while they are in their caches.
PIECE_BYTES: Final = 256 << 10
# Bytes that are masked at a time: memory of this size is reused at once, larger memory is mapped
# again.
_MASK_BYTES: Final = 32 << 10
_NORMAL_CLOSURE: Final = 1000


class Stream(SocketStream):
    """A :class:`tapml_rpc.transport.DataConnection` over an upgraded socket."""

    memory_is_reused = True

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._incoming: Incoming = Incoming(connection, self._pong)

    def send(
        self, packed: bytes, chunk: bytes | memoryview = b"", check: Check | None = None
    ) -> None:
        """Send a message, whose chunk may change as soon as this returns.

        What `check` raises ends the wait within the message, and with it the connection.
        """
        head = frames.head(packed, len(chunk))
        self._half_sent = True
        if len(head) + len(chunk) <= PIECE_BYTES:
            body = b"".join((head, chunk)) if chunk else head
            self._send_frame(framing.BINARY, body, check)
        else:
            # A header may fill several frames: it has up to 1 MiB, and no chunk need follow it.
            pieces = [*_pieces(head), *_pieces(chunk)]
            for number, piece in enumerate(pieces, 1):
                opcode = framing.BINARY if number == 1 else framing.CONTINUATION
                self._send_frame(opcode, piece, check, final=number == len(pieces))
        self._half_sent = False

    def receive(self, wait_milliseconds: int) -> tuple[memoryview, memoryview] | None:
        """The next message's header and chunk; None if it is not complete in time."""
        message = self._next(wait_milliseconds)
        if message is None:
            return None
        parts = frames.split(message)
        self._half_received = False
        return parts

    def close(self, packed: bytes = b"") -> None:
        """Close, with a last message and a WebSocket's goodbye if the peer takes them soon."""

        def send(check: Check) -> None:
            if packed:
                self.send(packed, check=check)
            self._send_frame(framing.CLOSE, Close(_NORMAL_CLOSURE, "").serialize(), check)

        self._close(send, socket.SHUT_RDWR)

    def abort(self) -> None:
        """Close without a goodbye."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        super().abort()

    def _pong(self, payload: bytes) -> None:
        self._send_frame(framing.PONG, payload, None)

    def _send_frame(
        self, opcode: int, payload: bytes | memoryview, check: Check | None, *, final: bool = True
    ) -> None:
        key = secrets.token_bytes(framing.KEY_BYTES)
        mask = Mask(key)
        head = framing.frame_head(opcode, len(payload), key, final=final)
        self._send_all([memoryview(head + mask.turn(payload[:_MASK_BYTES]))], check)
        for start in range(_MASK_BYTES, len(payload), _MASK_BYTES):
            piece = mask.turn(payload[start : start + _MASK_BYTES])
            self._send_all([memoryview(piece)], check)


def _pieces(data: bytes | memoryview) -> list[memoryview]:
    view = memoryview(data)
    return [view[start : start + PIECE_BYTES] for start in range(0, len(view), PIECE_BYTES)]
