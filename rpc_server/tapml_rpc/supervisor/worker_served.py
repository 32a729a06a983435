"""A plain data connection that a worker serves, as the supervisor still sees it.

It holds the descriptor only to notice the connection's end whatever the worker does, to see whether
a stopped worker leaves anything unread, and to say the last word once the worker has gone.
"""

from __future__ import annotations

import select
import socket
import time
from contextlib import suppress
from typing import Final

from tapml_rpc.zmtp import framing
from tapml_rpc.zmtp.parting import MOST_DISCARDED_BYTES, PARTING_SECONDS

_DISCARD_BYTES: Final = 256 << 10
# Linux has it; elsewhere a connection that is closed for reading and writing is noticed.
_HUNG_UP: Final[int] = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class WorkerServed:
    """One session's data connection; this object owns the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._gone = False

    def gone(self) -> bool:
        """Whether the client had hung up by the last call: its worker may say more meanwhile."""
        gone, self._gone = self._gone, bool(self._poll(_HUNG_UP) & _HUNG_UP)
        return gone

    def unread(self) -> bool:
        """Whether bytes have come that the worker has not received."""
        return bool(self._poll(select.POLLIN))

    def part(self, last: bytes) -> None:
        """End it after its worker: send a `last` header, and read until the peer closes it.

        A connection that is closed over unread bytes is reset, and that makes the other end drop
        what had come for it. Takes up to ``PARTING_SECONDS``; what still comes is bounded.
        """
        deadline, left = time.monotonic() + PARTING_SECONDS, MOST_DISCARDED_BYTES
        with self._socket, suppress(OSError):
            if last:
                self._socket.send(framing.frame_head(len(last)) + last)
            self._socket.shutdown(socket.SHUT_WR)
            while left > 0 and (seconds := deadline - time.monotonic()) > 0:
                if not self._poll(select.POLLIN, seconds):
                    return
                nbytes = len(self._socket.recv(_DISCARD_BYTES))
                left -= nbytes
                if not nbytes:
                    return

    def _poll(self, events: int, seconds: float = 0.0) -> int:
        poll = select.poll()
        poll.register(self._socket, events)
        return sum(found for _, found in poll.poll(1000 * seconds))
