"""The WebSocket door on the tracker's own thread: messages in order, one at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tapml_rpc import wire
from tapml_rpc.tracker.records import WEBSOCKET, Sender
from tapml_rpc.tracker.switchboard import Dial
from tapml_rpc.tracker.websocket_door import WebSocketDoor
from tapml_rpc.tracker.websocket_peer import WebSocketPeer
from tapml_rpc.websocket import frames
from tapml_rpc.websocket.admission import Listening
from tapml_targets.errors import ProtocolError

MOST_UNHEARD: Final = 1024
MOST_UNHEARD_BYTES: Final = 1 << 20
"""What a peer may send before it is processed; a peer that sends more does not read."""


@dataclass(frozen=True)
class Gone:
    """A connection that is over, and why."""

    key: bytes
    why: str


@dataclass(frozen=True)
class Said:
    """A message."""

    sender: Sender
    message: bytes


@dataclass
class _Line:
    """One peer's messages, or that it is gone."""

    sender: Sender | None = None
    messages: deque[bytes] = field(default_factory=deque)
    nbytes: int = 0
    why: str = ""


class Unheard:
    """A queue of messages per peer. Filled by the door's thread, emptied by the tracker's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # In the order of their turns.
        self._lines: dict[bytes, _Line] = {}

    def __len__(self) -> int:
        """How many peers have messages."""
        return len(self._lines)

    def put(self, sender: Sender, message: bytes) -> bool:
        """Keep a message; False, without keeping it, if its sender has sent too much."""
        with self._lock:
            line = self._lines.setdefault(sender.key, _Line(sender))
            if line.sender is None:
                # A message after the end would belong to a key that nobody reports again.
                return True
            room = line.nbytes + len(message) <= MOST_UNHEARD_BYTES
            if len(line.messages) >= MOST_UNHEARD or not room:
                return False
            line.messages.append(message)
            line.nbytes += len(message)
            return True

    def end(self, key: bytes, why: str) -> None:
        """A peer is gone; its last messages, about itself only, go with it."""
        with self._lock:
            self._lines[key] = _Line(why=why)

    def next(self) -> Said | Gone | None:
        """The message, or end, of the peer whose turn it is; None for nothing."""
        with self._lock:
            if not self._lines:
                return None
            key = next(iter(self._lines))
            line = self._lines.pop(key)
            if line.sender is None:
                return Gone(key, line.why)
            message = line.messages.popleft()
            line.nbytes -= len(message)
            if line.messages:
                self._lines[key] = line
            return Said(line.sender, message)


_REFUSED: Final = 1008
# The others of the tracker's thread have their turn in between.
_AT_ONCE: Final = 256

Take = Callable[[Sender, Callable[[], wire.Header]], object]
"""Takes a sender and what reads its message, which may raise."""


class WebSocketEntrance:
    """Accepts devices and clients over WebSocket.

    `origins` are pages that may connect, beside those of this machine. A peer without a sign of
    life for `silence_seconds` is gone. `wake` is called on the door's thread when :meth:`hand_over`
    has news, `dial` when a device should connect for a client. `way` is what a lease says of the
    way through here.
    """

    def __init__(
        self,
        listening: Listening,
        origins: tuple[str, ...],
        silence_seconds: float,
        wake: Callable[[], None],
        dial: Dial,
    ) -> None:
        self._unheard = Unheard()
        self._wake = wake
        self._door = WebSocketDoor(
            listening.host,
            listening.port,
            heard=self._hear,
            gone=self._end,
            dial=dial,
            guard=listening.tokens,
            context=listening.context,
            origins=origins,
            silence_seconds=silence_seconds,
        )
        self.address = self._door.address
        self.way: wire.Header = {
            "address": f"relay+{self.address.partition(':')[0]}",
            "relay_port": self._door.port,
            "certificate": listening.announced.get("fingerprint", ""),
        }
        self.allow = self._door.allow
        self.cut = self._door.cut
        self.close = self._door.close

    def send(self, key: bytes, packed: bytes) -> None:
        """Send a header to a peer; one that is gone is handed over as such."""
        self._door.send(key, frames.head(packed, 0))

    def hand_over(self, take: Take, gone: Callable[[bytes, str], None]) -> None:
        """Pass on what has come, from one peer after the other; what is left wakes again."""
        for _ in range(_AT_ONCE):
            arrival = self._unheard.next()
            if arrival is None:
                return
            if isinstance(arrival, Gone):
                gone(arrival.key, arrival.why)
            else:
                take(arrival.sender, partial(_header_of, arrival.message))
        if self._unheard:
            self._wake()

    def _hear(self, peer: WebSocketPeer, key: bytes, message: bytes) -> None:
        if self._unheard.put(Sender(key, peer.identity, peer.host, WEBSOCKET), message):
            self._wake()
        else:
            peer.close(_REFUSED, "it sends more than the tracker can read")

    def _end(self, key: bytes, why: str) -> None:
        self._unheard.end(key, why)
        self._wake()


def _header_of(message: bytes) -> wire.Header:
    packed, chunk = frames.split(message)
    if chunk:
        raise ProtocolError("a message to a tracker is one header")
    return wire.unpack(packed)
