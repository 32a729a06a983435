"""How devices and clients reach a tracker by ``tcp://``, as the tracker sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tapml_rpc import wire
from tapml_rpc.tracker.records import Sender
from tapml_targets.errors import ProtocolError


class Handler(Protocol):
    """Handles incoming messages: the tracker."""

    def take(self, sender: Sender, read: Callable[[], wire.Header]) -> bool:
        """Take a message; False if it was refused.

        Faults of the message, and of `read`, are reported to its sender.
        """

    def needs(self, key: bytes) -> bool:
        """Whether a device, lease or request depends on a connection."""

    def gone(self, key: bytes, why: str) -> None:
        """A connection is gone; what depends on it ends."""

    def probe(self) -> None:
        """Send something on every connection that something depends on."""

    def show(self, error: Exception) -> None:
        """Report an internal fault."""


class Entrance(Protocol):
    """Listens at ``tcp://host:port`` and passes messages to its handler.

    Runs on the tracker's thread; nothing in it waits.
    """

    address: str

    def serve(self) -> None:
        """Hand over what has come, and which connections are gone."""

    def pending(self) -> bool:
        """Whether :meth:`serve` has something to do though nothing more may come."""

    def send(self, key: bytes, packed: bytes) -> None:
        """Send a header without waiting; an unreachable peer is soon reported as gone."""

    def check(self, now: float) -> None:
        """Check timeouts, ten times a second."""

    def excuse(self, seconds: float) -> None:
        """Do not count a time in which the tracker itself was stopped as silence."""

    def close(self) -> None:
        """End all connections."""


def header_of(packed: bytes | memoryview, frames: int) -> wire.Header:
    """The header of a message of `frames` frames.

    Raises ProtocolError if malformed or not one frame.
    """
    if frames != 1:
        raise ProtocolError("a message to a tracker is one header")
    return wire.unpack(packed)


def no_name_of_its_own() -> wire.Header:
    """Raise ProtocolError for a peer with its own routing id.

    Otherwise what depends on a connection would belong to the next one of the same name.
    """
    raise ProtocolError("a tracker's peer chooses no ZeroMQ routing id of its own")
