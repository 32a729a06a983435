"""Where devices and clients come to a tracker by ``tcp://``, as the tracker sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tapml_rpc import wire
from tapml_rpc.tracker.records import Sender
from tapml_targets.errors import ProtocolError


class Desk(Protocol):
    """Who hears what comes in: the tracker."""

    def take(self, sender: Sender, read: Callable[[], wire.Header]) -> bool:
        """Take a message; what is wrong with it, or raised by `read`, its sender is told.

        Returns
        -------
        bool
            False where it was refused.
        """

    def needs(self, key: bytes) -> bool:
        """Whether something hangs on a connection: a device, a lease, a request."""

    def gone(self, key: bytes, why: str) -> None:
        """A connection is gone, and what hangs on it ends."""

    def probe(self) -> None:
        """Send something on every connection that something hangs on."""

    def show(self, error: Exception) -> None:
        """Show a fault that is ours and no peer's."""


class Entrance(Protocol):
    """Listens, and tells its desk what comes. On the tracker's thread; nothing in it waits.

    Attributes
    ----------
    address
        ``tcp://host:port``, where it listens.
    """

    address: str

    def serve(self) -> None:
        """Hand over what has come, and who has gone."""

    def pending(self) -> bool:
        """Whether :meth:`serve` has something to do though nothing more may come."""

    def send(self, key: bytes, packed: bytes) -> None:
        """Send a header without waiting; who cannot be reached is soon told of as gone."""

    def check(self, now: float) -> None:
        """Look at the clock, ten times a second."""

    def excuse(self, seconds: float) -> None:
        """Do not hold against anybody a time in which the tracker itself was stopped."""

    def close(self) -> None:
        """End all connections."""


def header_of(packed: bytes | memoryview, frames: int) -> wire.Header:
    """A message of so many frames as its header.

    Raises
    ------
    ProtocolError
        If it is none, or not one frame.
    """
    if frames != 1:
        raise ProtocolError("a message to a tracker is one header")
    return wire.unpack(packed)


def no_name_of_its_own() -> wire.Header:
    """Reads a message from who has a routing id of its own.

    What hangs on a connection would else be the next one's of the same name.

    Raises
    ------
    ProtocolError
        Always.
    """
    raise ProtocolError("a tracker's peer chooses no ZeroMQ routing id of its own")
