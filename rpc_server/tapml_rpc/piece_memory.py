"""Memory for the pieces of streamed reads, used again once a piece has been sent.

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
        """Remember a piece that is being sent; `tracker` says when it is done, None that it is."""

    def answer(self, nbytes: int) -> memoryview:
        """Memory for what the batch's answer takes along as it is; nothing is taken until then."""

    def direct(self) -> bool:
        """Whether what is sent now leaves from where it lies before anything else happens."""

    def give_back(self) -> None:
        """What was taken last, by either, will not be sent: its read failed."""


class PieceMemory:
    """Pieces of one size that go round between the driver and the socket.

    Parameters
    ----------
    nbytes
        Size of a piece.
    """

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
        """Remember a piece that is being sent; `tracker` says when it is done, None that it is."""
        if tracker is None:
            self._idle = piece
        elif len(self._lent) < _MOST_KEPT:
            self._lent.append((piece, tracker))

    def answer(self, nbytes: int) -> memoryview:
        """Memory for what the batch's answer takes along as it is."""
        return memoryview(bytearray(nbytes))

    def direct(self) -> bool:
        """Not so: sockets take a large message without a copy, and send it later."""
        return False

    def give_back(self) -> None:
        """Nothing to do: memory of this process goes with who holds it."""
