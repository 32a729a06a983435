"""The client's end of one WebSocket connection: whole messages, no thread, few copies.

A payload is masked once, a piece at a time while it is in the processor's cache, and received into
memory that is used again. One thread at a time.
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

from tapml_rpc.websocket.frames import MAX_MESSAGE_BYTES
from tapml_targets.errors import ProtocolError

try:
    from websockets.speedups import apply_mask
except ImportError:  # a board without a compiler, and no wheel for it
    from websockets.utils import apply_mask

# Of a message's payload in one frame: what both ends mask and copy while their caches hold it.
PIECE_BYTES: Final = 256 << 10
# So much is masked at a time: memory of this size is used again at once, larger comes anew.
_MASK_BYTES: Final = 32 << 10
_AHEAD_BYTES: Final = 16 << 10
_FIRST_BYTES: Final = 64 << 10
_POLL_MILLISECONDS: Final = 50
_MASKED: Final = 0x80
_FIN: Final = 0x80
_MAX_CONTROL_BYTES: Final = 125
_NORMAL_CLOSURE: Final = 1000

Check = Callable[[], None]


class EndedError(Exception):
    """The connection has ended; the message says how."""


class Stream:
    """Messages over a socket that has been upgraded.

    Parameters
    ----------
    connection
        From :func:`tapml_rpc.websocket.handshake.open_socket`; this object's from now on.

    Attributes
    ----------
    torn
        Whether an exception that is none of ours, such as Ctrl-C, may have left a frame half sent
        or half counted; then nothing more can be sent or received.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.torn = False
        self._socket = connection
        self._poll_in, self._poll_out = select.poll(), select.poll()
        self._poll_in.register(connection, select.POLLIN)
        self._poll_out.register(connection, select.POLLOUT)
        # What was received and not looked at lies in ahead[start:end].
        self._ahead = memoryview(bytearray(_AHEAD_BYTES))
        self._start = self._end = 0
        # The message that is arriving: memory[:filled], and what its frame still has to bring.
        self._memory = bytearray(_FIRST_BYTES)
        self._filled = 0
        self._missing = 0
        self._final = False
        self._open = False

    def fileno(self) -> int:
        """What a poller takes."""
        return self._socket.fileno()

    def send(
        self, head: bytes, chunk: bytes | memoryview = b"", check: Check | None = None
    ) -> None:
        """Send one binary message.

        Parameters
        ----------
        head, chunk
            Together the message; `head` is a multiple of 4 bytes long if there is a chunk.
        check
            Called now and then while the peer takes nothing; what it raises ends the waiting in
            the middle of the message, and the connection with it.

        Raises
        ------
        EndedError
            If the connection is gone.
        """
        self.torn = True
        if len(head) + len(chunk) <= PIECE_BYTES:
            body = b"".join((head, chunk)) if chunk else head
            self._send_frame(Opcode.BINARY, body, check)
        else:
            view, opcode, end = memoryview(chunk), Opcode.BINARY, 0
            while end < len(view):
                start, end = end, min(end + PIECE_BYTES, len(view))
                first = head if not start else b""
                final = end == len(view)
                self._send_frame(opcode, view[start:end], check, first=first, final=final)
                opcode = Opcode.CONT
        self.torn = False

    def receive(self, wait_milliseconds: int) -> memoryview | None:
        """The next message; None where it has not all come in time.

        Its memory is used again by the next call.

        Raises
        ------
        EndedError
            If the connection is gone.
        ProtocolError
            If the peer sent what is no binary message within bounds.
        """
        self.torn = True
        message = self._next(wait_milliseconds)
        self.torn = False
        return message

    def close(self, seconds: float = 0.2) -> None:
        """Say goodbye if the peer takes it, and close. Never raises, never waits longer."""
        deadline = time.monotonic() + seconds

        def check() -> None:
            if time.monotonic() > deadline:
                raise EndedError("the peer takes nothing")

        with suppress(EndedError):
            self._send_frame(Opcode.CLOSE, Close(_NORMAL_CLOSURE, "").serialize(), check)
        self.abort()

    def abort(self) -> None:
        """Close without a word."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _next(self, wait_milliseconds: int) -> memoryview | None:
        while True:
            if not self._missing and not self._open_frame(wait_milliseconds):
                return None
            while self._missing:
                end = self._filled + self._missing
                taken = self._take(memoryview(self._memory)[self._filled : end])
                if taken:
                    self._filled += taken
                    self._missing -= taken
                elif not self._wait(wait_milliseconds):
                    return None
            if self._final:
                self._open = False
                return memoryview(self._memory)[: self._filled]

    def _open_frame(self, wait_milliseconds: int) -> bool:
        """Read the head of the next frame that brings payload; False where none has come."""
        while True:
            head = self._peek_head(wait_milliseconds)
            if head is None:
                return False
            first, second, length, size = head
            opcode, final = first & 0x0F, bool(first & _FIN)
            if first & 0x70 or second & _MASKED:
                raise ProtocolError("the server sent a frame with reserved bits or a mask")
            if opcode >= 8:
                if length > _MAX_CONTROL_BYTES or not final:
                    raise ProtocolError("the server sent a control frame that is none")
                if self._end - self._start < size + length:
                    if not self._fill(wait_milliseconds):
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

    def _peek_head(self, wait_milliseconds: int) -> tuple[int, int, int, int] | None:
        """First bytes, payload length and size of a frame's head; it stays where it is."""
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
            if not self._fill(wait_milliseconds):
                return None

    def _make_room(self, size: int) -> None:
        if size > len(self._memory):
            # What a caller still looks at keeps the old memory.
            larger = bytearray(min(max(size, 2 * len(self._memory)), MAX_MESSAGE_BYTES))
            larger[: self._filled] = memoryview(self._memory)[: self._filled]
            self._memory = larger

    def _fill(self, wait_milliseconds: int) -> bool:
        """Receive into the memory ahead; False where nothing has come in time."""
        if self._start:
            have = self._end - self._start
            self._ahead[:have] = bytes(self._ahead[self._start : self._end])
            self._start, self._end = 0, have
        while True:
            count = self._receive(self._ahead[self._end :])
            if count:
                self._end += count
                return True
            if not self._wait(wait_milliseconds):
                return False

    def _take(self, target: memoryview) -> int:
        """Payload into `target`, from what is there already first; 0 where there is none."""
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
            self._poll_out.poll(_POLL_MILLISECONDS)
            return 0
        except (OSError, ValueError) as error:
            raise EndedError(f"the connection dropped: {error}") from None
        if not count:
            raise EndedError("the connection dropped")
        return count

    def _wait(self, milliseconds: int) -> bool:
        if not milliseconds:
            return False
        # Everything received is counted: an interrupt may come here and leave us whole.
        self.torn = False
        ready = bool(self._poll_in.poll(milliseconds))
        self.torn = True
        return ready

    def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == Opcode.CLOSE:
            try:
                said = str(Close.parse(payload))
            except Exception:
                said = "without a reason that can be read"
            raise EndedError(f"the server closed the connection: {said}")
        if opcode == Opcode.PING:
            self._send_frame(Opcode.PONG, payload, None)
        elif opcode != Opcode.PONG:
            raise ProtocolError(f"the server sent a frame of unknown kind {opcode}")

    def _send_frame(
        self,
        opcode: Opcode,
        payload: bytes | memoryview,
        check: Check | None,
        *,
        first: bytes = b"",
        final: bool = True,
    ) -> None:
        """Send `first` and `payload` as one frame; masked apart, which fits for multiples of 4."""
        mask = secrets.token_bytes(4)
        head = _frame_head(opcode, len(first) + len(payload), mask, final=final)
        masked = apply_mask(payload[:_MASK_BYTES], mask)
        self._send_all(memoryview(b"".join((head, apply_mask(first, mask), masked))), check)
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


def _frame_head(opcode: Opcode, length: int, mask: bytes, *, final: bool) -> bytes:
    first = (_FIN if final else 0) | opcode
    if length < 126:
        return struct.pack("!BB", first, _MASKED | length) + mask
    if length < 1 << 16:
        return struct.pack("!BBH", first, _MASKED | 126, length) + mask
    return struct.pack("!BBQ", first, _MASKED | 127, length) + mask
