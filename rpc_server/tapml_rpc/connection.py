"""What a client asks of the connection that its payloads take, whichever binding that is of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

Check: TypeAlias = Callable[[], None]


class EndedError(Exception):
    """The connection has ended; the message says how."""


class DataConnection(Protocol):
    """Messages to a server and from it; one thread at a time.

    Attributes
    ----------
    memory_is_reused
        Whether a chunk lies in memory that the next :meth:`receive` writes to.
    """

    memory_is_reused: bool

    @property
    def torn(self) -> bool:
        """Whether an exception may have left a message half sent or half received."""

    def send(
        self, packed: bytes, chunk: bytes | memoryview = b"", check: Check | None = None
    ) -> None:
        """Send a message: a header and, if it has one, a chunk.

        Parameters
        ----------
        check
            Called now and then while the server takes nothing; what it raises ends the waiting.

        Raises
        ------
        EndedError
            If the connection is gone.
        """

    def receive(self, wait_milliseconds: int) -> tuple[bytes | memoryview, memoryview] | None:
        """The next message's header and chunk; None where it has not all come in time.

        Raises
        ------
        EndedError
            If the connection is gone.
        ProtocolError
            If the server sent what is no message within bounds.
        """

    def close(self, packed: bytes) -> None:
        """Send a last message if the server takes it, and close. Never raises."""

    def abort(self) -> None:
        """Close without a word."""
