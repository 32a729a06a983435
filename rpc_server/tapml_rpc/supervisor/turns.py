"""Whose batches the device works on next, where several sessions have some.

A session alone sends ahead as far as its window goes. Where another has work too, each has at most
a turn's worth with its worker, and workers answer only once the device has done it: turns go round,
measured in bytes and launches, and nobody's queue on the device stands before anybody's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from tapml_rpc.program_body import MAX_NAME_CHARACTERS

# A launch weighs as much as moving so many bytes.
LAUNCH_BYTES: Final = 32 << 10
TURN_BYTES: Final = 4 << 20
_LAUNCHING: Final = frozenset({"call", "run"})
_PROGRAM: Final = frozenset({"execute", "forget", "program"})


class Turns:
    """What every session has under way. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[bytes, int] = {}
        # Sessions whose workers take batches by themselves, and who is told of company.
        self._by_themselves: dict[bytes, Callable[[], None]] = {}

    def shared(self, token: bytes) -> bool:
        """Whether another session has work under way beside this one's."""
        with self._lock:
            return not self._alone(token)

    def begin(self, token: bytes, cost: int) -> bool:
        """Count a batch that goes to its worker; False where it has to wait for the next turn."""
        with self._lock:
            for other, tell in self._by_themselves.items():
                if other != token:
                    tell()
            mine = self._under_way.get(token, 0)
            if mine and not self._alone(token) and mine + cost > TURN_BYTES:
                return False
            self._under_way[token] = mine + cost
            return True

    def have_begun(self, token: bytes, cost: int) -> None:
        """Count a batch that its worker has taken by itself."""
        with self._lock:
            self._under_way[token] = self._under_way.get(token, 0) + cost

    def lend(self, token: bytes, tell: Callable[[], None]) -> bool:
        """Let a session's worker take batches by itself; False where it has company.

        Parameters
        ----------
        tell
            Called, from any thread, when another session begins something; until :meth:`have_back`
            that one counts this session as one which has work under way.
        """
        with self._lock:
            alone = self._alone(token)
            if alone:
                self._by_themselves[token] = tell
            return alone

    def have_back(self, token: bytes) -> None:
        """The session's worker takes no more batches by itself."""
        with self._lock:
            self._by_themselves.pop(token, None)

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
            self._by_themselves.pop(token, None)

    def _alone(self, token: bytes) -> bool:
        return self._under_way.keys() | self._by_themselves.keys() <= {token}


class Weights:
    """What the batches of one session weigh; its programs are remembered by their launches.

    Parameters
    ----------
    programs, program_commands
        How many it may have, and how long: one that is not known weighs the most.
    """

    def __init__(self, programs: int = 0, program_commands: int = 0) -> None:
        self._programs: dict[str, int] = {}
        self._most = programs
        self._unknown = program_commands

    def cost_of(self, commands: list[Any], nbytes: int) -> int:
        """What a batch weighs: at least one byte, its payload, its launches."""
        launches = 0
        for command in commands:
            name = _name(command)
            if name in _LAUNCHING:
                launches += 1
            elif name in _PROGRAM and len(command) > 1 and isinstance(command[1], str):
                launches += self._program(name, command)
        return 1 + nbytes + launches * LAUNCH_BYTES

    def _program(self, name: str, command: list[Any]) -> int:
        called = command[1]
        if name == "execute":
            return self._programs.get(called, self._unknown)
        # The worker may refuse this `program`, or skip this `forget` on a poisoned stream, and keep
        # the longer one: a name weighs what the longest under it did.
        if name == "program" and isinstance(command[-1], list):
            called = called[:MAX_NAME_CHARACTERS]
            if called in self._programs or len(self._programs) < self._most:
                launches = sum(_name(each) in _LAUNCHING for each in command[-1])
                self._programs[called] = max(launches, self._programs.get(called, 0))
        return 0


def _name(command: Any) -> str:
    # It may be anything, as may be what is in it.
    name = command[0] if isinstance(command, list) and command else ""
    return name if isinstance(name, str) else ""
