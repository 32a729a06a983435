"""Bounds on what peers without a session may make a server keep.

On loopback such a peer needs no secret, and is given a while. Messages on control are short; the
first message of a data connection may be as long as any, so the number of such connections is
bounded.
"""

from __future__ import annotations

import asyncio
from typing import Final

from websockets.asyncio.server import ServerConnection
from websockets.frames import CloseCode

from tapml_rpc.websocket.outbox import Outbox

HELLO_SECONDS: Final = 10.0


def bound_messages(connection: ServerConnection, nbytes: int) -> None:
    """Accept no message over `nbytes` on a connection that has not been answered yet."""
    protocol = connection.protocol
    # Until release 16 of the package.
    former = hasattr(protocol, "max_size")
    setattr(protocol, "max_size" if former else "max_message_size", nbytes)


class Strangers:
    """Data connections of one server without a session, oldest first."""

    def __init__(self) -> None:
        self._waiting: dict[Outbox, None] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def came(self, outbox: Outbox, most: int) -> None:
        """Another one is open; the oldest is closed if there are too many.

        `most` is the number of possible sessions: a client with a session says so at once, so of
        more than these connections the oldest belongs to no session.
        """
        self._waiting[outbox] = None
        if len(self._waiting) <= most:
            return
        oldest = next(iter(self._waiting))
        del self._waiting[oldest]
        why = f"it has not named its session, and {most} other connections are waiting"
        closing = asyncio.get_running_loop().create_task(
            oldest.close(CloseCode.POLICY_VIOLATION, why)
        )
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def gone(self, outbox: Outbox) -> None:
        """One has named its session, or has ended."""
        self._waiting.pop(outbox, None)
