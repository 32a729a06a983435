"""The batches a session sent last, kept packed, for the day somebody asks what it was doing."""

from __future__ import annotations

from collections import deque
from typing import Final

from tapml_rpc import wire
from tapml_rpc.failures import render_command
from tapml_rpc.running_batch import place_in

# As many as a session may have unanswered, where they are not enormous: one of them is running.
_BATCHES: Final = 64
_BYTES: Final = 8 << 20
_SHOWN: Final = 5


class LastCommands:
    """Remembers batches as they went to a worker; reads them only when asked."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, bytes]] = deque()
        self._bytes = 0

    def add(self, sequence: int, packed: bytes) -> None:
        """Remember a batch."""
        self._batches.append((sequence, packed))
        self._bytes += len(packed)
        while len(self._batches) > _BATCHES or (self._bytes > _BYTES and len(self._batches) > 1):
            self._bytes -= len(self._batches.popleft()[1])

    def name(self, sequence: int, place: int) -> str:
        """A command as a person reads it; ``fence`` for what comes after a batch's last one."""
        index, inner = place_in(place)
        for number, packed in self._batches:
            if number == sequence:
                commands = wire.unpack(packed)["commands"]
                if index >= len(commands):
                    return "fence"
                shown = render_command(commands[index])
                return shown if inner < 0 else f"{shown}, its command {inner}"
        return f"command {index} of batch {sequence}"

    def report(self, running: tuple[int, int, float] | None) -> str:
        """The last few, each on a line of its own; empty where there are none.

        Parameters
        ----------
        running
            Batch and place of what runs, with which the lines end; None for nothing.
        """
        shown: list[str] = []
        for sequence, packed in reversed(self._batches):
            commands = wire.unpack(packed)["commands"]
            if running is not None and sequence >= running[0]:
                # Later ones have not begun.
                commands = commands[: place_in(running[1])[0] + 1] if sequence == running[0] else []
            shown += [render_command(each) for each in reversed(commands[-_SHOWN:])]
            if len(shown) >= _SHOWN:
                break
        if not shown:
            return ""
        what = "received" if running is None else "begun"
        return f"\nlast commands {what}:\n  " + "\n  ".join(reversed(shown[:_SHOWN]))
