"""Memory for the pieces of streamed reads, reused once a piece has been sent.

Fresh memory for every piece costs more in page faults than the copy into it.
"""

from __future__ import annotations

from typing import Protocol


class Pieces(Protocol):
    """Memory for the pieces of a streamed read."""

    def take(self) -> memoryview:
        """Memory that nobody reads any more."""

    def answer(self, nbytes: int) -> memoryview:
        """Memory for bytes that the batch's answer carries; nothing else is taken until then."""

    def direct(self) -> bool:
        """Whether the bytes leave device memory before anything else runs."""

    def give_back(self) -> None:
        """Return the memory taken last: its read failed, and it will not be sent."""


class PieceMemory:
    """Pieces of `nbytes` that are copied as soon as they are sent."""

    def __init__(self, nbytes: int) -> None:
        self._memory = memoryview(bytearray(nbytes))

    def take(self) -> memoryview:
        """Memory that nobody reads any more."""
        return self._memory

    def answer(self, nbytes: int) -> memoryview:
        """Memory for bytes that the batch's answer carries."""
        return memoryview(bytearray(nbytes))

    def direct(self) -> bool:
        """False: an answer keeps what it carries."""
        return False

    def give_back(self) -> None:
        """Nothing to do."""
