"""What goes between a supervisor and a worker: headers over a socket, payloads in a ring."""

from __future__ import annotations

import array
import mmap
import os
import socket
import struct
import tempfile
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tapml_rpc import wire
from tapml_targets.errors import ProtocolError

# A page of words, of which the first counts released bytes.
HEAD_BYTES: Final = 4096
RELEASED: Final = 0
_ALIGNMENT: Final = 64


class Ring:
    """One side of a ring. It owns `descriptor`, memory of :func:`make_memory`.

    Positions count bytes since the ring began, and never decrease. `nbytes` fit. `words` are the
    unsigned 64-bit words of the shared head.
    """

    def __init__(self, descriptor: int) -> None:
        self.nbytes = os.fstat(descriptor).st_size - HEAD_BYTES
        self._memory = mmap.mmap(descriptor, self.nbytes + HEAD_BYTES)
        os.close(descriptor)
        whole = memoryview(self._memory)
        self.words = whole[:HEAD_BYTES].cast("Q")
        self._bytes = whole[HEAD_BYTES:]
        self._placed = 0
        # Set if everything before was already released when something was placed.
        self._begun = 0
        self._closed = False

    def reserve(self, nbytes: int) -> tuple[int, memoryview] | None:
        """Reserve one contiguous piece: its position and memory; None while there is no room.

        A piece of up to half the ring has room at the latest when all others are released; a longer
        one may never have it, because it must not wrap around the ring's end.
        """
        released = max(self.words[RELEASED], self._begun)
        start = self._placed
        to_end = self.nbytes - start % self.nbytes
        if released == start:
            # Empty: begin again where its pages have been used and may be in the cache.
            start += to_end % self.nbytes
            self._begun = released = start
        elif nbytes > to_end:
            start += to_end
        end = start + -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        if end - released > self.nbytes:
            return None
        self._placed = end
        offset = start % self.nbytes
        return start, self._bytes[offset : offset + nbytes]

    def trim(self, start: int, nbytes: int) -> None:
        """Return what the piece reserved last does not need after its first `nbytes`."""
        self._placed = start + -(-nbytes // _ALIGNMENT) * _ALIGNMENT

    def view(self, start: int, nbytes: int) -> memoryview:
        """What the other side has placed; raises ProtocolError if it is outside the ring."""
        offset = start % self.nbytes
        if offset + nbytes > self.nbytes or nbytes < 0:
            raise ProtocolError(f"{nbytes} bytes at {start} do not lie in a ring of {self.nbytes}")
        return self._bytes[offset : offset + nbytes]

    def release(self, start: int, nbytes: int) -> None:
        """Release a piece and everything placed before it; no effect once closed."""
        if self._closed:
            # A payload may leave after its session has ended.
            return
        self.words[RELEASED] = start + -(-nbytes // _ALIGNMENT) * _ALIGNMENT

    def close(self) -> None:
        """Release the memory. It is freed with the last view of it."""
        if self._closed:
            return
        self._closed = True
        for view in (self.words, self._bytes):
            with suppress(BufferError):
                view.release()
        with suppress(BufferError):
            self._memory.close()
        # The remaining views keep it alive, and not this object, which may be kept for long.
        del self._memory, self._bytes


def make_memory(nbytes: int, name: str) -> int:
    """A descriptor of `nbytes` and a head, all zero, that child processes may inherit."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create(f"tapml-{name}", 0)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, nbytes + HEAD_BYTES)
    return descriptor


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
        """Send a frame, without waiting if `most_unsent`; raises OSError if nobody takes it."""
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
        """Close the socket, and unused descriptors that came over it; release its memory."""
        self._socket.close()
        # Now: a session's objects refer to each other, and are collected only later.
        self._buffer = memoryview(b"")
        self._unsent, self._received = bytearray(), bytearray()
        while self.descriptors:
            os.close(self.descriptors.popleft())
        while self._unsent_descriptors:
            os.close(self._unsent_descriptors.popleft()[1])
