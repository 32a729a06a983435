"""Unprocessed messages of the door's peers: bounded, and taken in turn."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from tapml_rpc.tracker.records import Sender

MOST_UNHEARD: Final = 1024
MOST_UNHEARD_BYTES: Final = 1 << 20
"""What a peer may send before it is processed; a peer that sends more does not read."""


@dataclass(frozen=True)
class Gone:
    """A connection that is over, and why."""

    key: bytes
    why: str


@dataclass(frozen=True)
class Said:
    """A message."""

    sender: Sender
    message: bytes


@dataclass
class _Line:
    """One peer's messages, or that it is gone."""

    sender: Sender | None = None
    messages: deque[bytes] = field(default_factory=deque)
    nbytes: int = 0
    why: str = ""


class Unheard:
    """A queue of messages per peer. Filled by the door's thread, emptied by the tracker's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # In the order of their turns.
        self._lines: dict[bytes, _Line] = {}

    def __len__(self) -> int:
        """How many peers have messages."""
        return len(self._lines)

    def put(self, sender: Sender, message: bytes) -> bool:
        """Keep a message; False, without keeping it, if its sender has sent too much."""
        with self._lock:
            line = self._lines.setdefault(sender.key, _Line(sender))
            if line.sender is None:
                # A message after the end would belong to a key that nobody reports again.
                return True
            room = line.nbytes + len(message) <= MOST_UNHEARD_BYTES
            if len(line.messages) >= MOST_UNHEARD or not room:
                return False
            line.messages.append(message)
            line.nbytes += len(message)
            return True

    def end(self, key: bytes, why: str) -> None:
        """A peer is gone; its last messages, about itself only, go with it."""
        with self._lock:
            self._lines[key] = _Line(why=why)

    def next(self) -> Said | Gone | None:
        """The message, or end, of the peer whose turn it is; None for nothing."""
        with self._lock:
            if not self._lines:
                return None
            key = next(iter(self._lines))
            line = self._lines.pop(key)
            if line.sender is None:
                return Gone(key, line.why)
            message = line.messages.popleft()
            line.nbytes -= len(message)
            if line.messages:
                self._lines[key] = line
            return Said(line.sender, message)
