"""Bytes in several pieces, joined only if they must be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias


class Scattered:
    """One or more consecutive `pieces`, which do not change."""

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        self.pieces = pieces
        self._nbytes = sum(map(len, pieces))

    def __len__(self) -> int:
        return self._nbytes

    def after(self, start: int) -> Scattered:
        """Everything after `start` bytes of the first piece, which is longer."""
        return Scattered([self.pieces[0][start:], *self.pieces[1:]])

    def copy_to(self, memory: memoryview) -> None:
        """Copy the pieces into `memory`, which has their total length."""
        end = 0
        for piece in self.pieces:
            start, end = end, end + len(piece)
            memory[start:end] = piece


Chunk: TypeAlias = memoryview | Scattered


def in_one_piece(chunk: Chunk) -> memoryview:
    """The same bytes, copied if they came in pieces."""
    return memoryview(b"".join(chunk.pieces)) if isinstance(chunk, Scattered) else chunk
