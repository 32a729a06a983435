"""What those may make a server keep who have not said yet whose they are.

A stranger needs no secret on loopback, and is given a while. What goes over control is short; the
first message of a data connection may be as long as any, so there are only so many such connections
at a time.
"""

from __future__ import annotations

import asyncio
from typing import Final

from websockets.asyncio.server import ServerConnection
from websockets.frames import CloseCode

from tapml_rpc.websocket.outbox import Outbox

HELLO_SECONDS: Final = 10.0


def bound_messages(connection: ServerConnection, nbytes: int) -> None:
    """Take no message over so many bytes on a connection that has not been answered yet."""
    protocol = connection.protocol
    # Until release 16 of the package.
    former = hasattr(protocol, "max_size")
    setattr(protocol, "max_size" if former else "max_message_size", nbytes)


class Strangers:
    """Data connections of one server, oldest first."""

    def __init__(self) -> None:
        self._waiting: dict[Outbox, None] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def came(self, outbox: Outbox, most: int) -> None:
        """Another one is open; the oldest makes room where there are too many.

        Parameters
        ----------
        most
            As many as there can be sessions: who has one says at once that a connection is its own,
            so that of more than these the oldest is nobody's.
        """
        self._waiting[outbox] = None
        if len(self._waiting) <= most:
            return
        oldest = next(iter(self._waiting))
        del self._waiting[oldest]
        why = f"it has not said whose it is, and {most} others wait to"
        closing = asyncio.get_running_loop().create_task(
            oldest.close(CloseCode.POLICY_VIOLATION, why)
        )
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def gone(self, outbox: Outbox) -> None:
        """One has said whose it is, or has ended."""
        self._waiting.pop(outbox, None)
