"""Devices and clients without keys: ZMTP on our own sockets, on loopback.

libzmq would keep all frames of a message until its last one has come, however many come, from
anybody on this machine; and it drops what is too long silently.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable
from functools import partial
from selectors import BaseSelector
from typing import Final

from tapml_rpc import wire
from tapml_rpc.failures import failure_to_wire
from tapml_rpc.security.standing import LOOPBACK_IDENTITY
from tapml_rpc.tracker.entrance import Handler, header_of, no_name_of_its_own
from tapml_rpc.tracker.records import (
    HEARTBEAT_SECONDS,
    HEARTBEAT_TIMEOUT_SECONDS,
    MAX_MESSAGE_BYTES,
    Sender,
)
from tapml_rpc.zmtp.listener import STRANGER_REFUSALS, STRANGER_SECONDS, Listener
from tapml_rpc.zmtp.peer import Peer
from tapml_targets.errors import ProtocolError

MOST_CONNECTIONS: Final = 1024
# A peer that sends more while this much waits for it does not read. The list of devices takes up to
# one page; a peer without a device, lease or request is sent almost nothing.
_MOST_UNSENT_BYTES: Final = 1 << 20
_MOST_UNSENT_TO_STRANGER: Final = 64 << 10
_KEY_BYTES: Final = 8


class PlainEntrance:
    """The :class:`tapml_rpc.tracker.entrance.Entrance` for peers without keys.

    The data of a selector's key is its callback for events. In `address` the port ``*`` takes a
    free one. One more than `most` connections replaces the oldest that nothing depends on. Raises
    OSError if the address cannot be used.
    """

    def __init__(
        self,
        handler: Handler,
        selector: BaseSelector,
        address: str,
        *,
        most: int = MOST_CONNECTIONS,
    ) -> None:
        self.handler = handler
        self._connections: dict[bytes, TrackerConnection] = {}
        self._accepted = 0
        self._more = False
        # A list of many devices takes milliseconds, and everybody's heartbeats wait for them.
        self._listener = Listener(
            selector, address, self._accept, handler.show, most=most, at_once=1
        )
        self.address = self._listener.address

    def serve(self) -> None:
        """Hand over what has come, and which connections are gone."""
        self._more = self._listener.serve()

    def pending(self) -> bool:
        """Whether :meth:`serve` has something to do though nothing more may come."""
        return self._more

    def send(self, key: bytes, packed: bytes) -> None:
        """Send a header without waiting."""
        connection = self._connections.get(key)
        if connection is not None:
            connection.peer.send(packed)

    def check(self, now: float) -> None:
        """Check timeouts."""
        for connection in self._connections.values():
            connection.beat(now)
        self._listener.check(now)

    def excuse(self, seconds: float) -> None:
        """Do not count this time as silence."""
        for connection in self._connections.values():
            connection.excuse(seconds)

    def close(self) -> None:
        """End all connections."""
        # The end of the others is not reported.
        self._connections.clear()
        self._listener.close()

    def forget(self, key: bytes, why: str) -> None:
        """One of the connections has ended."""
        if self._connections.pop(key, None) is not None:
            self.handler.gone(key, why)

    def _accept(self, accepted: socket.socket) -> TrackerConnection:
        self._accepted += 1
        key = self._accepted.to_bytes(_KEY_BYTES)
        connection = self._connections[key] = TrackerConnection(self, key, accepted)
        return connection


class TrackerConnection:
    """The connection of a device or client; see :class:`tapml_rpc.zmtp.listener.Connection`.

    Raises OSError if it has gone again.
    """

    def __init__(self, entrance: PlainEntrance, key: bytes, accepted: socket.socket) -> None:
        self._sender = Sender(key, LOOPBACK_IDENTITY, accepted.getpeername()[0])
        self.peer = Peer(accepted, time.monotonic())
        self.peer.bound_headers(MAX_MESSAGE_BYTES)
        self._entrance = entrance
        self._light = self.peer.opened
        self._refusals = 0
        self._why = ""
        # The bytes that had come when it was last heard, and when it was first asked since.
        self._heard = 0
        self._asked = math.inf
        self._next_ping = self.peer.opened + HEARTBEAT_SECONDS

    def has_session(self) -> bool:
        """Whether a device, lease or request depends on it."""
        return self._entrance.handler.needs(self._sender.key)

    def lingers(self, now: float) -> bool:
        """Whether it has kept memory for too long, even if something depends on it."""
        if not self.peer.holds:
            self._light = now
        return now - self._light > STRANGER_SECONDS

    def beat(self, now: float) -> None:
        """Ask for a sign of life now and then, and end it if none comes."""
        if self.peer.received_bytes > self._heard:
            self._heard, self._asked = self.peer.received_bytes, math.inf
        if now - self._asked > HEARTBEAT_TIMEOUT_SECONDS:
            self._close("it gives no sign of life")
        elif now >= self._next_ping:
            self._next_ping = now + HEARTBEAT_SECONDS
            if self.peer.ping():
                self._asked = min(self._asked, now)

    def excuse(self, seconds: float) -> None:
        """Do not count this time as silence."""
        self._asked += seconds
        self._light += seconds

    def take(self) -> bool:
        """Take a message, if one has come."""
        message = self.peer.next()
        if message is None:
            return False
        packed, _, frames = message
        unsent = self.peer.unsent_bytes
        if unsent > _MOST_UNSENT_BYTES or (
            unsent > _MOST_UNSENT_TO_STRANGER and not self.has_session()
        ):
            self._close("it takes none of its messages")
            return False
        read: Callable[[], wire.Header] = partial(_short_header, packed, frames)
        if self.peer.routing_id:
            read = no_name_of_its_own
        taken = self._entrance.handler.take(self._sender, read)
        self._refusals = 0 if taken else self._refusals + 1
        if self._refusals > STRANGER_REFUSALS and not self.has_session():
            self._close("all its messages are refused")
        return True

    def end(self, error: Exception | None = None) -> socket.socket | None:
        """End it, after telling its peer what was wrong with its bytes."""
        why, parting = self._why or "its connection dropped", None
        if isinstance(error, ProtocolError):
            why = f"what it sent is against the protocol: {error}"
            self.peer.send(wire.pack({"type": "refused", "error": failure_to_wire(error)}))
            parting = self.peer.part()
        self.peer.release()
        self._entrance.forget(self._sender.key, why)
        return parting

    def _close(self, why: str) -> None:
        """Close it, which the listener notices."""
        self._why = why
        self.peer.close()


def _short_header(packed: bytes, frames: int) -> wire.Header:
    if frames == 1 and not packed:
        # It was too long to be kept, or is empty.
        raise ProtocolError(f"a message to a tracker is a header of 1 to {MAX_MESSAGE_BYTES} bytes")
    return header_of(packed, frames)
