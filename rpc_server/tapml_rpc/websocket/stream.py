"""The client's end of one WebSocket connection: whole messages, no thread, few copies.

A payload is masked once, a piece at a time while it is in the processor's cache; how messages
arrive is in :mod:`tapml_rpc.websocket.incoming`. One thread at a time.
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

# Of a message's payload in one frame: what both ends mask and copy while their caches hold it.
PIECE_BYTES: Final = 256 << 10
# So much is masked at a time: memory of this size is used again at once, larger comes anew.
_MASK_BYTES: Final = 32 << 10
_POLL_MILLISECONDS: Final = 50
_MASKED: Final = 0x80
_FIN: Final = 0x80
_NORMAL_CLOSURE: Final = 1000


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
        self._incoming = Incoming(connection, self._pong)

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
        while (message := self._incoming.next()) is None:
            # Everything received is counted: an interrupt may come here and leave us whole.
            self.torn = False
            if not wait_milliseconds or not self._poll_in.poll(wait_milliseconds):
                return None
            self.torn = True
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
        self._incoming.forget()

    def _pong(self, payload: bytes) -> None:
        self._send_frame(Opcode.PONG, payload, None)

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
