"""What the two ways to serve data connections have in common: whose messages they bring."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from tapml_rpc import wire
from tapml_rpc.failures import failure_to_wire
from tapml_rpc.supervisor.zmq_channel import DataEnd, ZmqChannel
from tapml_targets.errors import ProtocolError

if TYPE_CHECKING:
    from tapml_rpc.supervisor.relay import Relay


class Desk(Protocol):
    """Where a data connection finds its session: the front."""

    def claim(self, header: wire.Header, who: str, end: DataEnd) -> tuple[Relay, ZmqChannel]:
        """The session that a message is for, whose data connection is `end` from now on.

        Raises
        ------
        TapmlError
            If there is none, it is another's, or its data comes over another connection.
        """

    def settle(self, relay: Relay) -> None:
        """Forget a session that has ended."""

    def show(self, error: Exception) -> None:
        """Show a fault that is ours and no peer's."""


class DataService(Protocol):
    """Listens for data connections and brings their messages to their sessions.

    Attributes
    ----------
    address
        As clients are told it.
    """

    address: str

    def serve(self) -> bool:
        """Do what can be done without waiting; True where there is more of it."""

    def check(self, now: float) -> None:
        """Look at the clock."""

    def close(self) -> None:
        """End all connections."""


def error_reply(error: Exception, header: object) -> bytes:
    """What a message that cannot be taken is answered by; b"" where even that is too long.

    Parameters
    ----------
    header
        Of the message, as far as it was understood.
    """
    reply: wire.Header = {"type": "error", "error": failure_to_wire(error)}
    sequence = header.get("sequence") if isinstance(header, dict) else None
    if type(sequence) is int and 0 <= sequence <= wire.MAX_INTEGER:
        reply["sequence"] = sequence
    with suppress(ProtocolError):
        return wire.pack(reply)
    return b""
