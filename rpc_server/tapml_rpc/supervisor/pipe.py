"""The socket between a supervisor and a worker: packed headers, and where payloads lie."""

from __future__ import annotations

import array
import os
import socket
import struct
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tapml_rpc import wire
from tapml_targets.errors import ProtocolError

# Lengths of the header and of what follows it, then the place of a payload in the ring.
_FRAME: Final = struct.Struct("<IIQI")
NOWHERE: Final = (1 << 64) - 1
# A payload up to here goes along with its header.
INLINE_BYTES: Final = 16 << 10
_MAX_INLINE_BYTES: Final = 1 << 20
_RECEIVE_BYTES: Final = 256 << 10
_MAX_DESCRIPTORS: Final = 8
# Received descriptors are not inherited by programs that a driver starts, such as a compiler.
_RECEIVE_FLAGS: Final[int] = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


@dataclass(frozen=True)
class Frame:
    """A header, and a payload beside it or in the ring (`start` and `nbytes`)."""

    packed: bytes
    inline: bytes
    start: int
    nbytes: int


class Pipe:
    """One end of the socket, a connected unix stream.

    `most_unsent` bytes are kept for a peer that does not read; more is an error. `descriptors` are
    the file descriptors that came, oldest first.
    """

    def __init__(self, connection: socket.socket, *, most_unsent: int = 0) -> None:
        self.descriptors: deque[int] = deque()
        self._socket = connection
        self._most_unsent = most_unsent
        self._unsent = bytearray()
        # Descriptors that wait with them, each with how many bytes go before its frame.
        self._unsent_descriptors: deque[tuple[int, int]] = deque()
        self._received = bytearray()
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        if most_unsent:
            connection.setblocking(False)

    def fileno(self) -> int:
        """What a poller takes; -1 once closed."""
        return self._socket.fileno()

    def send(
        self,
        packed: bytes,
        inline: bytes | memoryview = b"",
        place: tuple[int, int] = (NOWHERE, 0),
        descriptor: int | None = None,
    ) -> None:
        """Send a frame; with `most_unsent` it never waits.

        Raises OSError if the peer is gone, or too much is waiting for it.
        """
        frame = b"".join((_FRAME.pack(len(packed), len(inline), *place), packed, inline))
        if not self._most_unsent:
            if descriptor is not None:
                frame = frame[socket.send_fds(self._socket, [frame], [descriptor]) :]
            self._socket.sendall(frame)
            return
        if len(self._unsent) + len(frame) > max(self._most_unsent, len(frame)):
            raise BlockingIOError("the other process does not read")
        if descriptor is not None:
            self._unsent_descriptors.append((len(self._unsent), os.dup(descriptor)))
        elif not self._unsent:
            with suppress(BlockingIOError):
                frame = frame[self._socket.send(frame) :]
        self._unsent += frame
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the peer takes it."""
        with suppress(BlockingIOError):
            while self._unsent:
                self._flush_some()

    def _flush_some(self) -> None:
        """Send bytes up to the next descriptor's frame, or from that frame on together with it."""
        waiting = self._unsent_descriptors
        due = bool(waiting) and waiting[0][0] == 0
        ends = [place for place, _ in list(waiting)[:2] if place]
        piece = self._unsent[: min([_RECEIVE_BYTES, *ends])]
        if due:
            sent = socket.send_fds(self._socket, [piece], [waiting[0][1]])
            os.close(waiting.popleft()[1])
        else:
            sent = self._socket.send(piece)
        del self._unsent[:sent]
        if waiting:
            self._unsent_descriptors = deque((place - sent, each) for place, each in waiting)

    def receive(self) -> bool:
        """Receive, waiting if the socket blocks; False at the peer's end."""
        try:
            count, ancillary, _, _ = self._socket.recvmsg_into(
                [self._buffer], socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4), _RECEIVE_FLAGS
            )
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors = array.array("i")
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
                self.descriptors.extend(descriptors)
        self._received += self._buffer[:count]
        return count > 0

    def waiting(self) -> Frame | None:
        """The next complete frame, which stays the next one."""
        received = bytes(self._received)
        frame = self.next()
        self._received[:] = received
        return frame

    def next(self) -> Frame | None:
        """The next complete frame; raises ProtocolError if its lengths are too large."""
        received = self._received
        if len(received) < _FRAME.size:
            return None
        header, inline, start, nbytes = _FRAME.unpack_from(received)
        if header > wire.MAX_HEADER_BYTES or inline > _MAX_INLINE_BYTES:
            raise ProtocolError(f"a frame of {header} and {inline} bytes")
        body = _FRAME.size + header
        if len(received) < body + inline:
            return None
        packed, beside = bytes(received[_FRAME.size : body]), bytes(received[body : body + inline])
        del received[: body + inline]
        return Frame(packed, beside, start, nbytes)

    def close(self) -> None:
        """Close the socket, and unused descriptors that came over it."""
        self._socket.close()
        while self.descriptors:
            os.close(self.descriptors.popleft())
        while self._unsent_descriptors:
            os.close(self._unsent_descriptors.popleft()[1])
