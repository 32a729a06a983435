"""Memory for the pieces of streamed reads, reused once a piece has been sent.

Fresh memory for every piece costs more in page faults than the copy into it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import zmq

_MOST_KEPT: Final = 16


class Pieces(Protocol):
    """Lends memory for the pieces of a streamed read."""

    def take(self) -> memoryview:
        """Memory that nobody reads any more."""

    def lend(self, piece: memoryview, tracker: zmq.MessageTracker | None) -> None:
        """Remember a piece that is being sent.

        `tracker` says when that is done, None that it is.
        """

    def answer(self, nbytes: int) -> memoryview:
        """Memory for bytes that the batch's answer carries; nothing else is taken until then."""

    def direct(self) -> bool:
        """Whether the bytes leave device memory before anything else runs."""

    def give_back(self) -> None:
        """Return the memory taken last: its read failed, and it will not be sent."""


class PieceMemory:
    """Pieces of `nbytes` that alternate between the driver and the socket."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._lent: deque[tuple[memoryview, zmq.MessageTracker]] = deque()
        self._idle: memoryview | None = None

    def take(self) -> memoryview:
        """Memory that nobody reads any more."""
        if self._idle is not None:
            idle, self._idle = self._idle, None
            return idle
        if self._lent and self._lent[0][1].done:
            return self._lent.popleft()[0]
        return memoryview(bytearray(self._nbytes))

    def lend(self, piece: memoryview, tracker: zmq.MessageTracker | None) -> None:
        """Remember a piece that is being sent.

        `tracker` says when that is done, None that it is.
        """
        if tracker is None:
            self._idle = piece
        elif len(self._lent) < _MOST_KEPT:
            self._lent.append((piece, tracker))

    def answer(self, nbytes: int) -> memoryview:
        """Memory for bytes that the batch's answer carries."""
        return memoryview(bytearray(nbytes))

    def direct(self) -> bool:
        """False: sockets take a large message without a copy, and send it later."""
        return False

    def give_back(self) -> None:
        """Nothing to do: memory of this process is garbage-collected."""
