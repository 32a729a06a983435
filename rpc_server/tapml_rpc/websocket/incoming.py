"""The receiving half of a client's WebSocket connection: complete messages, in reused memory.

Nothing here waits, and whatever a server sends is bounded.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable
from typing import Final

from websockets.frames import Close, Opcode

from tapml_rpc.connection import EndedError
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
        """Payload into `target`, from what was received already first; 0 if there is none."""
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
