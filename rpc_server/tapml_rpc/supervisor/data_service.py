"""What both kinds of data connection need: how a message finds its session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tapml_rpc import wire
from tapml_rpc.supervisor.zmq_channel import End, ZmqChannel

if TYPE_CHECKING:
    from tapml_rpc.supervisor.relay import Relay


class DataFront(Protocol):
    """Finds the session of a data connection: the front."""

    def claim(self, header: wire.Header, who: str, end: End) -> tuple[Relay, ZmqChannel]:
        """The session that a message is for; `end` becomes its data connection.

        Raises TapmlError if there is none, it is another client's, or uses another connection.
        """

    def settle(self, relay: Relay) -> None:
        """Forget a session that has ended."""

    def show(self, error: Exception) -> None:
        """Report an internal fault."""


class DataService(Protocol):
    """Listens for data connections; `address` is what clients are given."""

    address: str

    def serve(self) -> bool:
        """Do what can be done without waiting; True if there is more."""

    def check(self, now: float) -> None:
        """Check timeouts."""

    def close(self) -> None:
        """End all connections."""
