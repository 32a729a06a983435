"""The batches a session sent last, kept packed, for the day somebody asks what it was doing."""

from __future__ import annotations

from collections import deque
from typing import Final

from tapml_rpc import wire
from tapml_rpc.failures import render_command
from tapml_rpc.running_batch import place_in

_BATCHES: Final = 16
_SHOWN: Final = 5


class LastCommands:
    """Remembers batches as they went to a worker; reads them only when asked."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, bytes]] = deque(maxlen=_BATCHES)

    def add(self, sequence: int, packed: bytes) -> None:
        """Remember a batch."""
        self._batches.append((sequence, packed))

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

    def __str__(self) -> str:
        """The last few, each on a line of its own; empty where there are none."""
        shown: list[str] = []
        for _, packed in reversed(self._batches):
            shown += [render_command(each) for each in reversed(wire.unpack(packed)["commands"])]
            if len(shown) >= _SHOWN:
                break
        if not shown:
            return ""
        return "\nlast commands received:\n  " + "\n  ".join(reversed(shown[:_SHOWN]))
