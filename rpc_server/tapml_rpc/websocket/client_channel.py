"""One client's two connections, as its session and the front see them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tapml_rpc.websocket import frames
from tapml_rpc.websocket.outbox import Outbox, Parts

if TYPE_CHECKING:
    from tapml_rpc.supervisor.relay import Relay


class ClientChannel:
    """The :class:`tapml_rpc.supervisor.channel.Channel` of a client.

    `data` is None until the client has opened it. `fileno` is the relay's, as the loop watches it.
    `closing` is set once dropped: the task that closes its connections.
    """

    relay: Relay

    def __init__(self, control: Outbox) -> None:
        self.control = control
        self.data: Outbox | None = None
        self.fileno = -1
        self.closing: list[asyncio.Task[None]] = []

    def send_control(self, packed: bytes) -> bool:
        """Send a packed header on the control connection."""
        return self.control.put(frames.head(packed, 0))

    def send_data(
        self, packed: bytes, parts: Parts, sent: Callable[[], None] | None = None
    ) -> bool:
        """Send a packed header and its chunk on the data connection."""
        if self.data is None:
            if sent is not None:
                sent()
            return False
        return self.data.put(frames.head(packed, sum(map(len, parts))), parts, sent)

    def stalled_seconds(self, now: float) -> float:
        """How long the client has taken none of the bytes that wait for it."""
        boxes = (self.control, self.data)
        return max(box.stalled_seconds(now) for box in boxes if box is not None)
