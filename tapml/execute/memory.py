"""Host memory of runs, reused when nothing references an array in it.

An observer may keep a run's arrays (a recorder that writes them to disk), so memory cannot be
reused when the run ends, and allocating megabytes in every decode step costs page faults. Blocks
are therefore kept, and their reference counts show which ones are idle.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

import numpy as np

from tapml.execute.arrays import ALIGNMENT, Bytes, address

KEPT_BYTES: Final = 128 << 20


class HostMemory:
    """Blocks by key. Blocks of one key have the same size and use, so gaps in them stay zero.

    Blocks can be allocated in strips: the blocks of consecutive runs are then contiguous, and a
    recorder can compare or hash many at once.

    Parameters
    ----------
    allocate
        Allocates zeroed memory, for instance shared memory; None for memory of this process.
    """

    def __init__(self, allocate: Callable[[int], Bytes] | None = None) -> None:
        self._allocate = allocate
        self._strips: dict[Hashable, _Strips] = {}
        self._kept = 0

    def acquire(self, key: Hashable, nbytes: int, *, dense: bool, strip: int = 1) -> Bytes:
        """Idle aligned memory.

        Parameters
        ----------
        key
            Identifies the use of the memory.
        nbytes
            Size, a multiple of the alignment, the same for every call with this key.
        dense
            Whether the user writes every byte; else unwritten bytes are zero.
        strip
            Number of contiguous blocks.
        """
        strips = self._strips.setdefault((key, strip), _Strips([]))
        if strips.used == strip or not strips.memories:
            strips = self._next_strip((key, strip), strips, nbytes * strip, dense=dense)
        memory = strips.memories[strips.current]
        first = -address(memory) % ALIGNMENT + strips.used * nbytes
        strips.used += 1
        return memory[first : first + nbytes]

    def _next_strip(self, key: Hashable, strips: _Strips, nbytes: int, *, dense: bool) -> _Strips:
        """Make an idle strip the current one."""
        strips.used = 0
        for index in range(len(strips.memories)):
            if _references(strips.memories, index) == _IDLE:
                strips.current = index
                return strips
        size = nbytes + ALIGNMENT
        if self._kept + size > KEPT_BYTES:
            # Memory in use is freed by its users.
            self._strips.clear()
            self._kept = 0
            strips = _Strips([])
        self._strips[key] = strips
        if self._allocate is not None:
            memory = self._allocate(size)
        else:
            memory = np.empty(size, np.uint8) if dense else np.zeros(size, np.uint8)
        strips.memories.append(memory)
        strips.current = len(strips.memories) - 1
        self._kept += size
        return strips


@dataclass
class _Strips:
    """Memories of one key; `used` counts the blocks taken from the current one."""

    memories: list[Bytes]
    current: int = 0
    used: int = 0


def _references(memories: list[Bytes], index: int) -> int:
    return sys.getrefcount(memories[index])


# Measured like later counts, because the references that a call holds depend on the interpreter.
# Arrays inside a memory refer to it, however they were made.
_IDLE: Final = _references([np.empty(1, np.uint8)], 0)
