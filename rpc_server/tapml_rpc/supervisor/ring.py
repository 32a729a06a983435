"""Memory shared by a supervisor and a worker: bytes go through it in the order they came.

A payload lies in the ring from its sender's placing to its receiver's release; only its position
goes through a socket. One side places, the other releases; both read the count of released bytes,
and only the releasing side writes it.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from contextlib import suppress
from typing import Final

from tapml_rpc.scattered import Chunk, Scattered
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

    def place(self, chunk: Chunk) -> int | None:
        """Put `chunk` into the ring: its position; None while there is no room."""
        room = self.reserve(len(chunk))
        if room is None:
            return None
        start, memory = room
        if isinstance(chunk, Scattered):
            chunk.copy_to(memory)
        else:
            memory[:] = chunk
        return start

    def trim(self, start: int, nbytes: int) -> None:
        """Return what the piece reserved last does not need after its first `nbytes`."""
        self._placed = start + -(-nbytes // _ALIGNMENT) * _ALIGNMENT

    def view(self, start: int, nbytes: int) -> memoryview:
        """What the other side has placed.

        Raises ProtocolError if that is not one piece of the ring.
        """
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
