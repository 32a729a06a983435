"""A client's connection as its session sees it, for any binding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class Channel(Protocol):
    """Sends to one client. All methods run on the thread of the front that owns it."""

    def send_control(self, packed: bytes) -> bool:
        """Send a packed header on the control connection; False if the client is gone."""

    def send_data(
        self,
        packed: bytes,
        parts: Sequence[memoryview | bytes],
        sent: Callable[[], None] | None = None,
    ) -> bool:
        """Send a packed header and the parts of its chunk on the data connection.

        The caller owns the memory of `parts`. `sent` is called once they may be overwritten: from
        any thread, in the order of the calls, and also if the client has gone. False if nobody
        takes the message; the caller then ends the session.
        """
