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

    Parameters
    ----------
    control
        To its control connection.

    Attributes
    ----------
    relay
        Its session's, once there is one.
    data
        To its data connection; None until the client has opened it.
    fileno
        The relay's, as the loop watches it.
    closing
        Once dropped: what is left to be done with its connections.
    """

    relay: Relay

    def __init__(self, control: Outbox) -> None:
        self.control = control
        self.data: Outbox | None = None
        self.fileno = -1
        self.closing: list[asyncio.Task[None]] = []

    def send_control(self, packed: bytes) -> bool:
        """See the protocol."""
        return self.control.put(frames.head(packed, 0))

    def send_data(
        self, packed: bytes, parts: Parts, sent: Callable[[], None] | None = None
    ) -> bool:
        """See the protocol."""
        if self.data is None:
            if sent is not None:
                sent()
            return False
        return self.data.put(frames.head(packed, sum(map(len, parts))), parts, sent)

    def stalled_seconds(self, now: float) -> float:
        """How long the client has taken nothing of what waits for it."""
        boxes = (self.control, self.data)
        return max(box.stalled_seconds(now) for box in boxes if box is not None)
