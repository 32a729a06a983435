"""Memory that the run's process writes and the storing process reads, without a copy.

Each block is an unnamed file that both map; its descriptor is sent over their socket. Nothing is
left behind, however either process ends.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from tapml.execute.arrays import Bytes, address
from tapml.isolate.frame import unnamed_file

# Words of the block in which the storing process reports its progress.
PROGRESS_WORDS: Final = 3
DONE, STORED, FAILED = range(PROGRESS_WORDS)


@dataclass(frozen=True)
class Place:
    """A window into a block."""

    block: int
    offset: int


class SharedBlocks:
    """The writing side.

    Parameters
    ----------
    announce
        Announces a block to the other side: its id, size and descriptor, which is closed after.
    forget
        Announces that a block is gone; called from any thread that drops the last array.
    """

    def __init__(
        self, announce: Callable[[int, int, int], None], forget: Callable[[int], None]
    ) -> None:
        self._announce = announce
        self._forget = forget
        self._blocks: dict[int, Place] = {}
        self._next = 0

    def allocate(self, nbytes: int) -> Bytes:
        """A new zeroed block; it lives as long as an array inside it."""
        descriptor = unnamed_file()
        try:
            os.ftruncate(descriptor, max(1, nbytes))
            memory: Bytes = np.frombuffer(mmap.mmap(descriptor, max(1, nbytes)), np.uint8)
            self._next += 1
            self._announce(self._next, max(1, nbytes), descriptor)
        finally:
            os.close(descriptor)
        # The address that offsets of windows are relative to.
        self._blocks[id(memory)] = Place(self._next, -address(memory))
        weakref.finalize(memory, self._dropped, id(memory)).atexit = False
        return memory

    def place(self, window: Bytes) -> Place | None:
        """The place of a window; None if it is not shared."""
        block = self._blocks.get(id(window.base))
        return None if block is None else Place(block.block, block.offset + address(window))

    def _dropped(self, key: int) -> None:
        self._forget(self._blocks.pop(key).block)


def map_block(descriptor: int, nbytes: int) -> Bytes:
    """The reading side: map a block from a received descriptor, which is closed."""
    try:
        return np.frombuffer(mmap.mmap(descriptor, nbytes), np.uint8)
    finally:
        os.close(descriptor)
