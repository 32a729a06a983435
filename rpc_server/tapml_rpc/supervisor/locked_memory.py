"""Memory that a supervisor and a worker share, and a lock on it that one of them has at a time.

The lock is the system's, so it ends with whoever had it. What else the two need to know of each
other lies in the words of the memory.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress
from typing import Final

# What `make_memory` adds to what it is asked for: the words.
WORD_BYTES: Final = 4096


class LockedMemory:
    """One end.

    Parameters
    ----------
    descriptor
        Memory as :func:`tapml_rpc.supervisor.ring.make_memory` gives it; this object's from now on.
    nbytes
        What was asked for.

    Attributes
    ----------
    descriptor
        As given, for the other process.
    """

    def __init__(self, descriptor: int, nbytes: int = 0) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, WORD_BYTES + nbytes)
        whole = memoryview(self._memory)
        self._words = whole[:WORD_BYTES].cast("Q")
        self._bytes = whole[WORD_BYTES:]
        self._held = False

    def enter(self, *, wait: bool = False) -> bool:
        """Take the lock; False while the other process has it, unless that is waited for."""
        if not self._held:
            try:
                fcntl.lockf(self.descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError:
                return False
            self._held = True
        return True

    def leave(self) -> None:
        """Give the lock back, if it is held here."""
        if self._held:
            self._held = False
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the memory, and of the lock."""
        if self.descriptor < 0:
            return
        self._words.release()
        self._bytes.release()
        with suppress(BufferError):
            self._memory.close()
        os.close(self.descriptor)
        self.descriptor = -1
