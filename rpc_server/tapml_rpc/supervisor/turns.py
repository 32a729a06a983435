"""Whose batches the device works on next, where several sessions have some.

A session alone sends ahead as far as its window goes. Where another has work too, each has at most
a turn's worth with its worker, and workers answer only once the device has done it: turns go round,
measured in bytes and launches, and nobody's queue on the device stands before anybody's.
"""

from __future__ import annotations

import threading
from typing import Any, Final

# A launch weighs as much as moving so many bytes.
LAUNCH_BYTES: Final = 32 << 10
TURN_BYTES: Final = 4 << 20
_LAUNCHING: Final = frozenset({"call", "run"})


class Turns:
    """What every session has under way. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[bytes, int] = {}

    def shared(self, token: bytes) -> bool:
        """Whether another session has work under way beside this one's."""
        with self._lock:
            return len(self._under_way) > (token in self._under_way)

    def begin(self, token: bytes, cost: int) -> bool:
        """Count a batch that goes to its worker; False where it has to wait for the next turn."""
        with self._lock:
            mine = self._under_way.get(token, 0)
            alone = len(self._under_way) <= (token in self._under_way)
            if mine and not alone and mine + cost > TURN_BYTES:
                return False
            self._under_way[token] = mine + cost
            return True

    def end(self, token: bytes, cost: int) -> None:
        """A batch is answered."""
        with self._lock:
            left = self._under_way.get(token, 0) - cost
            if left > 0:
                self._under_way[token] = left
            else:
                self._under_way.pop(token, None)

    def leave(self, token: bytes) -> None:
        """A session has ended."""
        with self._lock:
            self._under_way.pop(token, None)


def cost_of(commands: list[Any], nbytes: int) -> int:
    """What a batch weighs: at least one byte, its payload, its launches."""
    launches = sum(
        isinstance(command, list)
        and bool(command)
        # It may be anything, a list for one.
        and isinstance(command[0], str)
        and command[0] in _LAUNCHING
        for command in commands
    )
    return 1 + nbytes + launches * LAUNCH_BYTES
