"""Connections whose peers were told why they are hung up on, until they have had time to hear it.

A connection that is closed over bytes nobody has read is reset, and a reset makes the other end
forget what had come for it, the reason first of all. So only the sending end is closed at once, and
what a peer still sends is read and thrown away: for a while, and as much as may be on its way.
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
# One more takes the place of the oldest.
MOST_PARTINGS: Final = 32
# Several times what a client sends ahead of its answers. Who sends on is not listening.
MOST_DISCARDED_BYTES: Final = 128 << 20
_DISCARD_BYTES: Final = 1 << 18


@dataclass
class _Parting:
    """When one began, and how much more its peer may send."""

    begun: float
    bytes_left: int


class Partings:
    """Those of one listener.

    Parameters
    ----------
    selector
        The front's. A key's data is called with the events.
    """

    def __init__(self, selector: BaseSelector) -> None:
        self._selector = selector
        # Oldest first.
        self._partings: dict[socket.socket, _Parting] = {}
        self._discarded = bytearray(_DISCARD_BYTES)

    def add(self, connection: socket.socket) -> None:
        """Take a connection that does not wait and sends nothing more; ours from now on."""
        while len(self._partings) >= MOST_PARTINGS:
            self._end(next(iter(self._partings)))
        self._partings[connection] = _Parting(time.monotonic(), MOST_DISCARDED_BYTES)
        self._selector.register(connection, EVENT_READ, partial(self._discard, connection))

    def check(self, now: float) -> None:
        """Hang up on those that have had their time."""
        for connection, parting in list(self._partings.items()):
            if now - parting.begun <= PARTING_SECONDS:
                break
            self._end(connection)

    def close(self) -> None:
        """Hang up on all of them."""
        for connection in list(self._partings):
            self._end(connection)

    def _discard(self, connection: socket.socket, mask: int) -> None:
        parting = self._partings.get(connection)
        if parting is None:
            # It has made room for another in the same round of the selector.
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
