"""Who may send on a data connection that a supervisor and a worker both hold: one at a time.

Whoever has the lock of its memory. Each word has one writer.
"""

from __future__ import annotations

from typing import Final

from tapml_rpc.supervisor.locked_memory import LockedMemory

# Written by the supervisor: how many messages of the worker it has passed on, and that it waits.
_PASSED: Final = 0
_WANTED: Final = 1
# Written by the worker: that a message of its own has begun and has not ended, and the last batch
# that it has answered by itself.
_HALFWAY: Final = 2
_ANSWERED: Final = 3


class Gate(LockedMemory):
    """One end of the gate: :meth:`enter` to begin to send, :meth:`leave` at a message's end."""

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
