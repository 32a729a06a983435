"""The client's end of one WebSocket connection: complete messages, no thread, few copies.

A payload is masked once, a piece at a time while it is in the processor's cache; how messages
arrive is in :mod:`tapml_rpc.websocket.stream`. Used by one thread at a time.
"""

from __future__ import annotations

import secrets
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from websockets.frames import Close, Opcode

from tapml_rpc.transport import Check, EndedError
from tapml_rpc.websocket.frames import MAX_MESSAGE_BYTES
from tapml_targets.errors import ProtocolError

_AHEAD_BYTES: Final = 16 << 10
_FIRST_BYTES: Final = 64 << 10
_POLL_MILLISECONDS: Final = 50
_MASKED: Final = 0x80
_FIN: Final = 0x80
_MAX_CONTROL_BYTES: Final = 125


class Incoming:
    """The receiving half of a connection, a non-blocking socket with TLS or without.

    `answer` sends a pong with this payload.
    """

    def __init__(self, connection: socket.socket, answer: Callable[[bytes], None]) -> None:
        self._socket = connection
        self._answer = answer
        # Received bytes that were not parsed yet are ahead[start:end].
        self._ahead = memoryview(bytearray(_AHEAD_BYTES))
        self._start = self._end = 0
        # The message that is arriving: memory[:filled], and what its frame still has to bring.
        self._memory = bytearray(_FIRST_BYTES)
        self._filled = 0
        self._missing = 0
        self._final = False
        self._open = False

    def next(self) -> memoryview | None:
        """The next message; None if it is incomplete. The next call reuses its memory.

        Raises EndedError if the connection is gone, ProtocolError for anything but a binary message
        within bounds.
        """
        while True:
            if not self._missing and not self._open_frame():
                return None
            while self._missing:
                end = self._filled + self._missing
                taken = self._take(memoryview(self._memory)[self._filled : end])
                if not taken:
                    return None
                self._filled += taken
                self._missing -= taken
            if self._final:
                self._open = False
                return memoryview(self._memory)[: self._filled]

    def forget(self) -> None:
        """Release what has arrived; the connection has ended."""
        self._memory = bytearray()
        self._start = self._end = self._filled = self._missing = 0

    def _open_frame(self) -> bool:
        """Read the head of the next frame with payload; False if none has come."""
        while True:
            head = self._peek_head()
            if head is None:
                return False
            first, second, length, size = head
            opcode, final = first & 0x0F, bool(first & _FIN)
            if first & 0x70 or second & _MASKED:
                raise ProtocolError("the server sent a frame with reserved bits or a mask")
            if opcode >= 8:
                if length > _MAX_CONTROL_BYTES or not final:
                    raise ProtocolError(
                        "the server sent a control frame that is fragmented or over 125 bytes"
                    )
                if self._end - self._start < size + length:
                    if not self._fill():
                        return False
                    continue
                start = self._start + size
                self._start = start + length
                self._control(opcode, bytes(self._ahead[start : start + length]))
                continue
            if opcode != (Opcode.CONT if self._open else Opcode.BINARY):
                raise ProtocolError(
                    "the server sent a text message or one out of turn; messages are binary"
                )
            self._filled = self._filled if self._open else 0
            if self._filled + length > MAX_MESSAGE_BYTES:
                raise ProtocolError(f"the server sent a message of over {MAX_MESSAGE_BYTES} bytes")
            self._start += size
            self._open, self._final, self._missing = True, final, length
            self._make_room(self._filled + length)
            return True

    def _peek_head(self) -> tuple[int, int, int, int] | None:
        """First bytes, payload length and size of a frame's head; nothing is consumed."""
        while True:
            have = self._end - self._start
            if have >= 2:
                first, second = self._ahead[self._start], self._ahead[self._start + 1]
                length = second & 0x7F
                extended = {126: 2, 127: 8}.get(length, 0)
                if have >= 2 + extended:
                    start = self._start + 2
                    if extended:
                        length = int.from_bytes(self._ahead[start : start + extended])
                    return first, second, length, 2 + extended
            if not self._fill():
                return None

    def _make_room(self, size: int) -> None:
        if size > len(self._memory):
            # What a caller still reads keeps the old memory.
            larger = bytearray(min(max(size, 2 * len(self._memory)), MAX_MESSAGE_BYTES))
            larger[: self._filled] = memoryview(self._memory)[: self._filled]
            self._memory = larger

    def _fill(self) -> bool:
        """Receive into the memory ahead; False if nothing has come."""
        if self._start:
            have = self._end - self._start
            self._ahead[:have] = bytes(self._ahead[self._start : self._end])
            self._start, self._end = 0, have
        count = self._receive(self._ahead[self._end :])
        self._end += count
        return count > 0

    def _take(self, target: memoryview) -> int:
        """Read payload into `target`, received bytes first; 0 if nothing has come."""
        have = min(self._end - self._start, len(target))
        if not have:
            return self._receive(target)
        target[:have] = self._ahead[self._start : self._start + have]
        self._start += have
        return have

    def _receive(self, target: memoryview) -> int:
        try:
            count = self._socket.recv_into(target)
        except (BlockingIOError, ssl.SSLWantReadError, InterruptedError):
            return 0
        except ssl.SSLWantWriteError:
            # TLS must send something first.
            room = select.poll()
            room.register(self._socket, select.POLLOUT)
            room.poll(_POLL_MILLISECONDS)
            return 0
        except (OSError, ValueError) as error:
            raise EndedError(f"the connection dropped: {error}") from None
        if not count:
            raise EndedError("the connection dropped")
        return count

    def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == Opcode.CLOSE:
            try:
                said = str(Close.parse(payload))
            except Exception:
                said = "without a reason that can be read"
            raise EndedError(f"the server closed the connection: {said}")
        if opcode == Opcode.PING:
            self._answer(payload)
        elif opcode != Opcode.PONG:
            raise ProtocolError(f"the server sent a frame of unknown kind {opcode}")


try:
    from websockets.speedups import apply_mask
except ImportError:  # a board without a compiler, and no wheel for it
    from websockets.utils import apply_mask

# Payload bytes of one frame: both ends mask and copy them while they are in their caches.
PIECE_BYTES: Final = 256 << 10
# Bytes that are masked at a time: memory of this size is reused at once, larger memory is mapped
# again.
_MASK_BYTES: Final = 32 << 10
_NORMAL_CLOSURE: Final = 1000


class Stream:
    """Messages over a socket from :func:`tapml_rpc.websocket.handshake.open_socket`, which it owns.

    `torn` says whether an exception such as Ctrl-C may have left a frame half sent or half counted;
    then nothing more can be sent or received.
    """

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
        self, head: bytes, chunk: bytes | memoryview = b"", check: Check | None = None
    ) -> None:
        """Send `head` and `chunk` as one binary message.

        Raises EndedError if the connection is gone.

        `check` is called now and then while the peer takes nothing; what it raises ends the wait
        within the message, and with it the connection.
        """
        self.torn = True
        if len(head) + len(chunk) <= PIECE_BYTES:
            body = b"".join((head, chunk)) if chunk else head
            self._send_frame(Opcode.BINARY, body, check)
        else:
            # A header may fill several frames: it has up to 1 MiB, and no chunk need follow it.
            pieces = [*_pieces(head), *_pieces(chunk)]
            for number, piece in enumerate(pieces, 1):
                opcode = Opcode.BINARY if number == 1 else Opcode.CONT
                self._send_frame(opcode, piece, check, final=number == len(pieces))
        self.torn = False

    def receive(self, wait_milliseconds: int) -> memoryview | None:
        """The next message; None if it is not complete in time. The next call reuses its memory.

        Raises EndedError if the connection is gone, ProtocolError for anything but a binary message
        within bounds.
        """
        self.torn = True
        while (message := self._incoming.next()) is None:
            # Everything received is counted: an interrupt here does no harm.
            self.torn = False
            if not wait_milliseconds or not self._poll_in.poll(wait_milliseconds):
                return None
            self.torn = True
        self.torn = False
        return message

    def close(self, seconds: float = 0.2) -> None:
        """Send a goodbye if the peer takes it in time, and close.

        Never raises, never waits longer.
        """
        deadline = time.monotonic() + seconds

        def check() -> None:
            if time.monotonic() > deadline:
                raise EndedError("the peer takes nothing")

        with suppress(EndedError):
            self._send_frame(Opcode.CLOSE, Close(_NORMAL_CLOSURE, "").serialize(), check)
        self.abort()

    def abort(self) -> None:
        """Close without a goodbye."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._incoming.forget()

    def _pong(self, payload: bytes) -> None:
        self._send_frame(Opcode.PONG, payload, None)

    def _send_frame(
        self,
        opcode: Opcode,
        payload: bytes | memoryview,
        check: Check | None,
        *,
        final: bool = True,
    ) -> None:
        mask = secrets.token_bytes(4)
        head = _frame_head(opcode, len(payload), mask, final=final)
        self._send_all(memoryview(head + apply_mask(payload[:_MASK_BYTES], mask)), check)
        for start in range(_MASK_BYTES, len(payload), _MASK_BYTES):
            masked = apply_mask(payload[start : start + _MASK_BYTES], mask)
            self._send_all(memoryview(masked), check)

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


def _frame_head(opcode: Opcode, length: int, mask: bytes, *, final: bool) -> bytes:
    first = (_FIN if final else 0) | opcode
    if length < 126:
        return struct.pack("!BB", first, _MASKED | length) + mask
    if length < 1 << 16:
        return struct.pack("!BBH", first, _MASKED | 126, length) + mask
    return struct.pack("!BBQ", first, _MASKED | 127, length) + mask
