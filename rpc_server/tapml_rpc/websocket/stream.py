"""The client's end of one WebSocket connection: complete messages, no thread, few copies.

A payload is masked once, a piece at a time while it is in the processor's cache; how messages
arrive is in :mod:`tapml_rpc.websocket.incoming`. Used by one thread at a time.
"""

from __future__ import annotations

import secrets
import select
import socket
import ssl
import struct
import time
from contextlib import suppress
from typing import Final

from websockets.frames import Close, Opcode

from tapml_rpc.connection import Check, EndedError
from tapml_rpc.websocket.incoming import Incoming

try:
    from websockets.speedups import apply_mask
except ImportError:  # a board without a compiler, and no wheel for it
    from websockets.utils import apply_mask

# Payload bytes of one frame: both ends mask and copy them while they are in their caches.
PIECE_BYTES: Final = 256 << 10
# Bytes that are masked at a time: memory of this size is reused at once, larger memory is mapped
# again.
_MASK_BYTES: Final = 32 << 10
_POLL_MILLISECONDS: Final = 50
_MASKED: Final = 0x80
_FIN: Final = 0x80
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
