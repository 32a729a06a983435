"""Who may send on a data connection that a supervisor and a worker both hold: one at a time.

The lock is the system's, so it ends with whoever had it. What else the two need to know of each
other lies in the memory that is locked; each word has one writer.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress
from typing import Final

_BYTES: Final = 4096
# Written by the supervisor: how many messages of the worker it has passed on, and that it waits.
_PASSED: Final = 0
_WANTED: Final = 1
# Written by the worker: that a message of its own has begun and has not ended, and the last batch
# that it has answered by itself.
_HALFWAY: Final = 2
_ANSWERED: Final = 3


class Gate:
    """One end of the gate.

    Parameters
    ----------
    descriptor
        Memory as :func:`tapml_rpc.supervisor.ring.make_memory` gives it; this object's from now on.

    Attributes
    ----------
    descriptor
        As given, for the other process.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _BYTES)
        self._words = memoryview(self._memory).cast("Q")
        self._held = False

    @property
    def passed(self) -> int:
        """How many messages of the worker have left by way of the supervisor."""
        return self._words[_PASSED]

    @passed.setter
    def passed(self, count: int) -> None:
        self._words[_PASSED] = count

    @property
    def wanted(self) -> bool:
        """Whether the supervisor has something to send and could not."""
        return bool(self._words[_WANTED])

    @wanted.setter
    def wanted(self, value: bool) -> None:
        self._words[_WANTED] = value

    @property
    def halfway(self) -> bool:
        """Whether the worker has sent a part of a message, and may have died over it."""
        return bool(self._words[_HALFWAY])

    @halfway.setter
    def halfway(self, value: bool) -> None:
        self._words[_HALFWAY] = value

    @property
    def answered(self) -> int:
        """The last batch that the worker has answered by itself; -1 for none."""
        return self._words[_ANSWERED] - 1

    @answered.setter
    def answered(self, sequence: int) -> None:
        self._words[_ANSWERED] = sequence + 1

    def enter(self) -> bool:
        """Begin to send; False while the other process does."""
        if not self._held:
            try:
                fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            self._held = True
        return True

    def leave(self) -> None:
        """End at the end of a message."""
        if self._held:
            self._held = False
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the memory, and of the lock."""
        if self.descriptor < 0:
            return
        self._words.release()
        with suppress(BufferError):
            self._memory.close()
        os.close(self.descriptor)
        self.descriptor = -1
