"""The receiving half of a ZMTP connection: the handshake, then messages, received in place.

A message's second frame, its chunk, goes from the socket straight into the memory that
:data:`Place` gives for it. Nothing here waits, and whatever a peer sends is bounded.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final, TypeAlias

from tapml_rpc import wire
from tapml_rpc.stream import ReadAhead
from tapml_rpc.zmtp import framing
from tapml_targets.errors import ProtocolError

AHEAD_BYTES: Final = 64 << 10
# Frames and commands that are handled before others have their turn.
_TURN: Final = 256
_MOST_FRAMES: Final = 4096
_NO_CHUNK: Final = memoryview(b"")
_SINK: Final = memoryview(bytearray(AHEAD_BYTES))

Place: TypeAlias = Callable[[bytes, int], "memoryview | None"]
"""Memory for a chunk of this size that follows this header; None discards it.

What it raises leaves the chunk unread.
"""

Message: TypeAlias = tuple[bytes, memoryview, int]
"""The header, the chunk in its memory, and the number of frames of the message."""


class Incoming(ReadAhead):
    """The receiving half of a connection, a non-blocking socket.

    `socket_type` is ours, ``b"ROUTER"`` or ``b"DEALER"``. `answer` sends the answer to a heartbeat.
    `pending` says whether :meth:`next` has something to do even if nothing more comes. A first
    frame longer than `most_header_bytes` is read and not kept, as if it were empty.
    """

    def __init__(
        self,
        connection: socket.socket,
        socket_type: bytes,
        place: Place,
        answer: Callable[[bytes], None],
    ) -> None:
        super().__init__(connection, AHEAD_BYTES)
        self.ready = self.pending = False
        self.most_header_bytes = wire.MAX_CHUNK_BYTES
        self._socket_type = socket_type
        self._place = place
        self._answer = answer
        self._greeted = False
        # The message that is arriving.
        self._packed = b""
        self._chunk = _NO_CHUNK
        self._frames = 0
        # The frame that is arriving: into target[filled:], or discarded.
        self._target: memoryview | None = None
        self._filled = self._missing = 0
        self._more = False

    def next(self) -> Message | None:
        """The next message; None if it is incomplete, or others should have their turn.

        Raises EndedError if the connection is gone, ProtocolError for anything but ZMTP within
        bounds: such a peer can only be disconnected.
        """
        self.pending = False
        for _ in range(_TURN):
            if not self._missing and not self._begin_frame():
                return None
            while self._missing:
                if not self._take():
                    return None
            if self._frames == 1 and self._target is not None:
                self._packed, self._target = bytes(self._target), None
            if self._frames and not self._more:
                self.pending = self._end > self._start
                return self._whole()
            if self._filled >= AHEAD_BYTES:
                # A message of many long frames is useless, and may be gigabytes.
                break
        self.pending = True
        return None

    @property
    def halfway(self) -> bool:
        """Whether a message has begun and is incomplete."""
        return self._frames > 0

    def begun(self, packed: bytes, chunk_bytes: int | None) -> bytes:
        """All that has come since a message began, as it came, to be parsed elsewhere.

        `packed` is its header; `chunk_bytes` the size of its chunk, of which nothing was parsed,
        None if it has none.
        """
        received = framing.frame_head(len(packed), 0 if chunk_bytes is None else framing.MORE)
        received += packed
        if chunk_bytes is not None:
            received += framing.frame_head(chunk_bytes, framing.MORE if self._more else 0)
        return received + bytes(self._ahead[self._start : self._end])

    def resume(self, received: bytes) -> None:
        """Continue a connection whose handshake another process has done, after `received`."""
        self._greeted = self.ready = self.pending = True
        self._ahead = memoryview(bytearray(max(AHEAD_BYTES, len(received))))
        self._start, self._end = 0, len(received)
        self._ahead[: self._end] = received

    def forget(self) -> None:
        """Release all memory; the connection has ended."""
        self._packed, self._chunk, self._target = b"", _NO_CHUNK, None
        self._ahead = _NO_CHUNK
        self._start = self._end = 0

    def _whole(self) -> Message:
        message = self._packed, self._chunk, self._frames
        self._packed, self._chunk, self._frames = b"", _NO_CHUNK, 0
        self._target = None
        return message

    def _begin_frame(self) -> bool:
        """Parse the next head, or a complete command; False if it is incomplete."""
        if not self._greeted:
            if not self._have(framing.GREETING_BYTES):
                return False
            framing.check_greeting(self._pop(framing.GREETING_BYTES))
            self._greeted = True
        while True:
            flags, nbytes, size = framing.parse_head(self._ahead, self._start, self._end)
            if size:
                break
            if not self._fill():
                return False
        if flags & framing.COMMAND or not self.ready:
            return self._take_command(flags, nbytes, size)
        if nbytes > wire.MAX_CHUNK_BYTES or self._frames >= _MOST_FRAMES:
            raise ProtocolError(
                f"frame {self._frames} of a message, of {nbytes} bytes: a message has at most "
                f"{_MOST_FRAMES} frames of {wire.MAX_CHUNK_BYTES} bytes"
            )
        self._start += size
        self._more = bool(flags & framing.MORE)
        self._frames += 1
        self._open(nbytes)
        return True

    def _open(self, nbytes: int) -> None:
        self._target, self._filled, self._missing = None, 0, nbytes
        if self._frames == 1:
            if self._end - self._start >= nbytes:
                self._packed, self._missing = self._pop(nbytes), 0
            elif nbytes <= self.most_header_bytes:
                self._target = memoryview(bytearray(nbytes))
        elif self._frames == 2:
            self._target = self._place(self._packed, nbytes)
            if self._target is not None:
                self._chunk = self._target

    def _take_command(self, flags: int, nbytes: int, size: int) -> bool:
        if nbytes > framing.MAX_COMMAND_BYTES or not flags & framing.COMMAND:
            raise ProtocolError(f"expected a ZMTP command, got flags {flags:#04x}, {nbytes} bytes")
        if not self._have(size + nbytes):
            return False
        body = self._pop(size + nbytes)[size:]
        if not self.ready:
            framing.check_ready(body, self._socket_type)
            self.ready = True
            return True
        name, data = framing.parse_command(body)
        # It may come between the frames of a message. An unknown one is ignored.
        if name == b"PING":
            self._answer(framing.pong(data))
        return True

    def _take(self) -> bool:
        """Receive some of a frame's body; False if nothing has come."""
        target = _SINK if self._target is None else self._target[self._filled :]
        count = self._take_into(target[: self._missing])
        self._filled += count
        self._missing -= count
        return count > 0
