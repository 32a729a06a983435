"""The unanswered batches of a session: rising numbers, bounded counts."""

from __future__ import annotations

from collections import deque

from tapml_rpc import wire
from tapml_rpc.welcome import Bounds
from tapml_targets.errors import ProtocolError


class Window:
    """Batches under way: their sequence and their chunks' bytes, oldest first."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._batches: deque[tuple[int, int]] = deque()
        self._nbytes = 0
        self._last = -1

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, header: wire.Header, nbytes: int) -> int:
        """Check a batch and count it; its sequence. Raises as :meth:`check`."""
        sequence = self.check(header, nbytes)
        self._last = sequence
        self._batches.append((sequence, nbytes))
        self._nbytes += nbytes
        return sequence

    def check(self, header: wire.Header, nbytes: int) -> int:
        """Check a batch; its sequence.

        Raises ProtocolError if it is malformed, does not follow the one before, or is one too many.
        """
        bounds = self._bounds
        sequence = wire.integer(header.get("sequence"), "sequence")
        wire.integer(header.get("stream", 0), "stream", bounds.streams - 1)
        wire.array(header.get("commands"), "commands", bounds.commands)
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
        return sequence

    def answered(self, sequence: int) -> None:
        """Forget all batches up to this one."""
        while self._batches and self._batches[0][0] <= sequence:
            self._nbytes -= self._batches.popleft()[1]
