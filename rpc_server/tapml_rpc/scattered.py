"""Bytes that came in several pieces, and are not put together before they must be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias


class Scattered:
    """Pieces, one after the other; nobody changes them.

    Attributes
    ----------
    pieces
        What it consists of; at least one.
    """

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        self.pieces = pieces
        self._nbytes = sum(map(len, pieces))

    def __len__(self) -> int:
        return self._nbytes

    def after(self, start: int) -> Scattered:
        """What comes after so many bytes of the first piece, which has more."""
        return Scattered([self.pieces[0][start:], *self.pieces[1:]])

    def copy_to(self, memory: memoryview) -> None:
        """Put the pieces into `memory`, which is as long as they are together."""
        end = 0
        for piece in self.pieces:
            start, end = end, end + len(piece)
            memory[start:end] = piece


Chunk: TypeAlias = memoryview | Scattered


def in_one_piece(chunk: Chunk) -> memoryview:
    """The same bytes, copied where they came in pieces."""
    return memoryview(b"".join(chunk.pieces)) if isinstance(chunk, Scattered) else chunk
