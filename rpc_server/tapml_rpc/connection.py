"""The data connection that a client needs, for either binding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

Check: TypeAlias = Callable[[], None]


class EndedError(Exception):
    """The connection has ended; the message says how."""


class DataConnection(Protocol):
    """Messages to and from a server; used by one thread at a time.

    `memory_is_reused`: a chunk lies in memory that the next :meth:`receive` overwrites.
    """

    memory_is_reused: bool

    @property
    def torn(self) -> bool:
        """Whether an exception may have left a message half sent or half received."""

    def send(
        self, packed: bytes, chunk: bytes | memoryview = b"", check: Check | None = None
    ) -> None:
        """Send a message: a header and, if it has one, a chunk.

        `check` is called now and then while the server takes nothing; what it raises ends the wait.
        Raises EndedError if the connection is gone.
        """

    def receive(self, wait_milliseconds: int) -> tuple[bytes | memoryview, memoryview] | None:
        """The next message's header and chunk; None if it is not complete in time.

        Raises EndedError if the connection is gone, ProtocolError for a message that is out of
        bounds.
        """

    def close(self, packed: bytes) -> None:
        """Send a last message if the server takes it, and close. Never raises."""

    def abort(self) -> None:
        """Close without a goodbye."""
