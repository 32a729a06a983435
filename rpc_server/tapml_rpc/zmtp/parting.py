"""Disconnected peers that were sent a reason, until they have had time to read it.

A connection that is closed over unread bytes is reset, and a reset makes the other end drop what
had come for it, including the reason. So only the sending direction is closed at once, and what a
peer still sends is read and discarded, for a limited time and a limited number of bytes.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from selectors import EVENT_READ, BaseSelector
from typing import Final

PARTING_SECONDS: Final = 2.0
# One more replaces the oldest.
MOST_PARTINGS: Final = 32
# Several times what a client sends ahead of its answers. A peer that sends on is not reading.
MOST_DISCARDED_BYTES: Final = 128 << 20
_DISCARD_BYTES: Final = 1 << 18


@dataclass
class _Parting:
    begun: float
    bytes_left: int


class Partings:
    """Those of one listener; a key's data of the `selector` is called with the events."""

    def __init__(self, selector: BaseSelector) -> None:
        self._selector = selector
        # Oldest first.
        self._partings: dict[socket.socket, _Parting] = {}
        self._discarded = bytearray(_DISCARD_BYTES)

    def add(self, connection: socket.socket) -> None:
        """Take over a non-blocking connection that sends nothing more."""
        while len(self._partings) >= MOST_PARTINGS:
            self._end(next(iter(self._partings)))
        self._partings[connection] = _Parting(time.monotonic(), MOST_DISCARDED_BYTES)
        self._selector.register(connection, EVENT_READ, partial(self._discard, connection))

    def check(self, now: float) -> None:
        """Close those whose time is over."""
        for connection, parting in list(self._partings.items()):
            if now - parting.begun <= PARTING_SECONDS:
                break
            self._end(connection)

    def close(self) -> None:
        """Close all of them."""
        for connection in list(self._partings):
            self._end(connection)

    def _discard(self, connection: socket.socket, mask: int) -> None:
        parting = self._partings.get(connection)
        if parting is None:
            # It was replaced by another in the same round of the selector.
            return
        try:
            nbytes = connection.recv_into(self._discarded)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            nbytes = 0
        parting.bytes_left -= nbytes
        if not nbytes or parting.bytes_left < 0:
            self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        if self._partings.pop(connection, None) is None:
            return
        self._selector.unregister(connection)
        with suppress(OSError):
            # A worker may hold the descriptor too.
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
