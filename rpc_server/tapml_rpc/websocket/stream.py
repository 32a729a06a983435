"""The client's end of one WebSocket connection: complete messages, no thread, few copies.

A payload is masked once, a piece at a time while it is in the processor's cache. Used by one thread
at a time.
"""

from __future__ import annotations

import secrets
import select
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from websockets.frames import Close

from tapml_rpc.read_ahead import ReadAhead
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
_CLOSE_SECONDS: Final = 0.2


class Stream:
    """A :class:`tapml_rpc.transport.DataConnection` over an upgraded socket, which it owns.

    `torn` says whether an exception such as Ctrl-C may have left a frame half sent or half counted;
    then nothing more can be sent or received.
    """

    memory_is_reused = True

    def __init__(self, connection: socket.socket) -> None:
        self.torn = False
        self._socket = connection
        self._poll_in, self._poll_out = select.poll(), select.poll()
        self._poll_in.register(connection, select.POLLIN)
        self._poll_out.register(connection, select.POLLOUT)
        self._incoming = Incoming(connection, self._pong)

    def fileno(self) -> int:
        """What a poller takes."""
        return self._socket.fileno()

    def send(
        self, packed: bytes, chunk: bytes | memoryview = b"", check: Check | None = None
    ) -> None:
        """Send a message, whose chunk may change as soon as this returns.

        What `check` raises ends the wait within the message, and with it the connection.
        """
        head = frames.head(packed, len(chunk))
        self.torn = True
        if len(head) + len(chunk) <= PIECE_BYTES:
            body = b"".join((head, chunk)) if chunk else head
            self._send_frame(framing.BINARY, body, check)
        else:
            # A header may fill several frames: it has up to 1 MiB, and no chunk need follow it.
            pieces = [*_pieces(head), *_pieces(chunk)]
            for number, piece in enumerate(pieces, 1):
                opcode = framing.BINARY if number == 1 else framing.CONTINUATION
                self._send_frame(opcode, piece, check, final=number == len(pieces))
        self.torn = False

    def receive(self, wait_milliseconds: int) -> tuple[memoryview, memoryview] | None:
        """The next message's header and chunk; None if it is not complete in time."""
        self.torn = True
        while (message := self._incoming.next()) is None:
            # Everything received is counted: an interrupt here does no harm.
            self.torn = False
            if not wait_milliseconds or not self._poll_in.poll(wait_milliseconds):
                return None
            self.torn = True
        parts = frames.split(message)
        self.torn = False
        return parts

    def close(self, packed: bytes = b"") -> None:
        """Close, with a WebSocket's goodbye if the peer takes it: control says that of `packed`."""
        deadline = time.monotonic() + _CLOSE_SECONDS

        def check() -> None:
            if time.monotonic() > deadline:
                raise EndedError("the peer takes nothing")

        with suppress(EndedError):
            self._send_frame(framing.CLOSE, Close(_NORMAL_CLOSURE, "").serialize(), check)
        self.abort()

    def abort(self) -> None:
        """Close without a goodbye."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._incoming.forget()

    def _pong(self, payload: bytes) -> None:
        self._send_frame(framing.PONG, payload, None)

    def _send_frame(
        self,
        opcode: int,
        payload: bytes | memoryview,
        check: Check | None,
        *,
        final: bool = True,
    ) -> None:
        key = secrets.token_bytes(framing.KEY_BYTES)
        mask = Mask(key)
        head = framing.frame_head(opcode, len(payload), key, final=final)
        self._send_all(memoryview(head + mask.turn(payload[:_MASK_BYTES])), check)
        for start in range(_MASK_BYTES, len(payload), _MASK_BYTES):
            piece = mask.turn(payload[start : start + _MASK_BYTES])
            self._send_all(memoryview(piece), check)

    def _send_all(self, data: memoryview, check: Check | None) -> None:
        while data:
            try:
                data = data[self._socket.send(data) :]
                continue
            except (BlockingIOError, ssl.SSLWantWriteError, InterruptedError):
                self._poll_out.poll(_POLL_MILLISECONDS)
            except ssl.SSLWantReadError:
                self._poll_in.poll(_POLL_MILLISECONDS)
            except (OSError, ValueError) as error:
                raise EndedError(f"the connection dropped: {error}") from None
            if check is not None:
                check()


def _pieces(data: bytes | memoryview) -> list[memoryview]:
    view = memoryview(data)
    return [view[start : start + PIECE_BYTES] for start in range(0, len(view), PIECE_BYTES)]
