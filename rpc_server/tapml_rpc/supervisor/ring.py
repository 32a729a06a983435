"""Memory shared by a supervisor and a worker: bytes go through it in the order they came.

A payload lies in the ring from the moment its sender has placed it until its receiver is done with
it; only where it lies goes through a socket. One side places, the other releases; the count of
released bytes is the one word both look at, and only one of them writes it.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from contextlib import suppress
from typing import Final

from tapml_rpc.scattered import Chunk, Scattered
from tapml_targets.errors import ProtocolError

# The words of the head: the first counts released bytes, the others are the users'.
HEAD_BYTES: Final = 4096
RELEASED: Final = 0
FREE_WORDS: Final = 8
_ALIGNMENT: Final = 64


class Room:
    """A piece of a ring that is being filled: where it begins, and its memory."""

    __slots__ = ("memory", "start")

    def __init__(self, start: int, memory: memoryview) -> None:
        self.start = start
        self.memory = memory

    def __len__(self) -> int:
        return len(self.memory)


class Ring:
    """One end of a ring.

    Positions count bytes since the ring began, and never turn back.

    Parameters
    ----------
    descriptor
        The memory, as :func:`make_memory` gives it; this object's from now on.

    Attributes
    ----------
    nbytes
        Bytes that fit.
    words
        Unsigned 64-bit words of the head, shared; from ``FREE_WORDS`` on they are the users' own.
    """

    def __init__(self, descriptor: int) -> None:
        self.nbytes = os.fstat(descriptor).st_size - HEAD_BYTES
        self._memory = mmap.mmap(descriptor, self.nbytes + HEAD_BYTES)
        os.close(descriptor)
        whole = memoryview(self._memory)
        self.words = whole[:HEAD_BYTES].cast("Q")
        self._bytes = whole[HEAD_BYTES:]
        self._placed = 0
        # Where everything before was released already when something was placed.
        self._begun = 0
        self._closed = False

    def reserve(self, nbytes: int) -> tuple[int, memoryview] | None:
        """Take room in one piece: its position and the memory; None while there is not so much.

        A piece of up to half the ring has room at the latest when all others are released; a longer
        one may never have it, for it must not lie over the ring's end.
        """
        released = max(self.words[RELEASED], self._begun)
        start = self._placed
        to_end = self.nbytes - start % self.nbytes
        if released == start:
            # Empty: it begins anew where its pages have been used, and the cache may hold them.
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
        """Give back what the piece reserved last does not need after its first `nbytes`."""
        self._placed = start + -(-nbytes // _ALIGNMENT) * _ALIGNMENT

    def take_back(self, room: Room) -> None:
        """Have a piece again that nobody will be told of, unless another was reserved since."""
        if self._placed == room.start + -(-len(room) // _ALIGNMENT) * _ALIGNMENT:
            self._placed = room.start

    def view(self, start: int, nbytes: int) -> memoryview:
        """What the other side has placed.

        Raises
        ------
        ProtocolError
            If that does not lie in one piece: the other side is out of its mind.
        """
        offset = start % self.nbytes
        if offset + nbytes > self.nbytes or nbytes < 0:
            raise ProtocolError(f"{nbytes} bytes at {start} do not lie in a ring of {self.nbytes}")
        return self._bytes[offset : offset + nbytes]

    def release(self, start: int, nbytes: int) -> None:
        """Be done with a piece and with everything placed before it; nothing once closed."""
        if self._closed:
            # A payload may leave after its session has ended.
            return
        self.words[RELEASED] = start + -(-nbytes // _ALIGNMENT) * _ALIGNMENT

    def close(self) -> None:
        """Let go of the memory. What somebody still reads or writes goes with the last of them."""
        if self._closed:
            return
        self._closed = True
        for view in (self.words, self._bytes):
            with suppress(BufferError):
                view.release()
        with suppress(BufferError):
            self._memory.close()
        # Whoever is left keeps it alive from now on, and not this end, which may be kept for long.
        del self._memory, self._bytes


def make_memory(nbytes: int, name: str) -> int:
    """A descriptor of `nbytes` and a head, all zero, that child processes may be given."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create(f"tapml-{name}", 0)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, nbytes + HEAD_BYTES)
    return descriptor
