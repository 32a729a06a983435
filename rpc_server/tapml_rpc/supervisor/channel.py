"""A client's connection as its session sees it, whichever binding carries it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class Channel(Protocol):
    """Sends to one client. All methods run on the thread of the front that owns it."""

    def send_control(self, packed: bytes) -> bool:
        """Send a packed header on the control connection; False where nobody takes it."""

    def send_data(
        self,
        packed: bytes,
        parts: Sequence[memoryview | bytes],
        sent: Callable[[], None] | None = None,
    ) -> bool:
        """Send a packed header and the parts of its chunk on the data connection.

        Parameters
        ----------
        parts
            Joined, they are the chunk; their memory is the caller's.
        sent
            Called once `parts` may be overwritten: from any thread, in the order of the calls,
            and also where the client has gone.

        Returns
        -------
        bool
            False where nobody takes it; the session is then ended by its caller.
        """
