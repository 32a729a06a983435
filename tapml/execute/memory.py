"""Host memory of runs, used again once nobody holds an array in it any more.

A run's arrays may be kept by whoever watches it (a recorder that writes them to disk), so memory
cannot be given out again when the run ends; and asking the system for megabytes in every decode
step costs page faults. So blocks are kept, and their reference counts tell which ones are idle.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import Final

import numpy as np

from tapml.execute.arrays import ALIGNMENT, Bytes, address

KEPT_BYTES: Final = 64 << 20


class HostMemory:
    """Blocks by key. Those of one key are equal in size and use, so gaps in them stay zero."""

    def __init__(self) -> None:
        self._blocks: dict[Hashable, list[Bytes]] = {}
        self._kept = 0

    def acquire(self, key: Hashable, nbytes: int, *, dense: bool) -> Bytes:
        """Aligned memory that nobody else uses.

        Parameters
        ----------
        key
            What the memory is for.
        nbytes
            Size, the same for every call with this key.
        dense
            Whether the user writes every byte; else what is never written is zero.
        """
        blocks = self._blocks.setdefault(key, [])
        for index in range(len(blocks)):
            if _references(blocks, index) == _IDLE:
                return _inside(blocks[index], nbytes)
        size = nbytes + ALIGNMENT
        block = np.empty(size, np.uint8) if dense else np.zeros(size, np.uint8)
        if size <= KEPT_BYTES:
            if self._kept + size > KEPT_BYTES:
                # Blocks in use live on with their users.
                self._blocks.clear()
                self._kept = 0
                blocks = self._blocks.setdefault(key, [])
            blocks.append(block)
            self._kept += size
        return _inside(block, nbytes)


def _inside(block: Bytes, nbytes: int) -> Bytes:
    offset = -address(block) % ALIGNMENT
    return block[offset : offset + nbytes]


def _references(blocks: list[Bytes], index: int) -> int:
    return sys.getrefcount(blocks[index])


# Counted the same way as later on, because how many references a call itself holds is the
# interpreter's business. Arrays inside a block refer to the block, however they were made.
_IDLE: Final = _references([np.empty(1, np.uint8)], 0)
