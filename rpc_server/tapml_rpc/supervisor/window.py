"""What a client has sent and not been answered: numbers that only rise, counts that are bounded."""

from __future__ import annotations

from collections import deque
from typing import Any

from tapml_rpc import wire
from tapml_rpc.bounds import Bounds
from tapml_rpc.supervisor.turns import Weights
from tapml_targets.errors import ProtocolError


class Window:
    """Batches on their way, by sequence, with their chunk bytes and what they weigh."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._batches: dict[int, tuple[int, int]] = {}
        self._order: deque[int] = deque()
        self._nbytes = 0
        self._last = -1
        self._weights = Weights(bounds.programs, bounds.program_commands)

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def last(self) -> int:
        """The batch that was counted last; -1 for none."""
        return self._last

    def add(self, header: wire.Header, nbytes: int) -> int:
        """Check a batch and count it; its sequence.

        Raises
        ------
        ProtocolError
            If it is malformed, does not follow the one before, or is one too many.
        """
        bounds = self._bounds
        sequence = wire.integer(header.get("sequence"), "sequence")
        wire.integer(header.get("stream", 0), "stream", bounds.streams - 1)
        commands = wire.array(header.get("commands"), "commands", bounds.commands)
        if sequence <= self._last:
            raise ProtocolError(
                f"batch {sequence} does not follow batch {self._last}: sequence rises"
            )
        if len(self._batches) >= bounds.unanswered:
            raise ProtocolError(
                f"{len(self._batches)} batches wait for an answer; at most {bounds.unanswered} may"
            )
        if self._nbytes + nbytes > bounds.upload_window:
            raise ProtocolError(
                f"{self._nbytes + nbytes} bytes wait for an answer; at most "
                f"{bounds.upload_window} may"
            )
        self.note(sequence, commands, nbytes)
        return sequence

    def note(self, sequence: int, commands: list[Any], nbytes: int) -> None:
        """Count a batch that was found right."""
        self._last = sequence
        self._order.append(sequence)
        self._batches[sequence] = nbytes, self._weights.cost_of(commands, nbytes)
        self._nbytes += nbytes

    def cost(self, sequence: int) -> int:
        """What a batch weighs."""
        return self._batches[sequence][1]

    def answered(self, sequence: int) -> int:
        """Forget all batches up to this one; what they weighed."""
        weighed = 0
        while self._order and self._order[0] <= sequence:
            nbytes, cost = self._batches.pop(self._order.popleft())
            self._nbytes -= nbytes
            weighed += cost
        return weighed
