"""What comes through the door, as the tracker's thread takes it: bounded, in turn, no word after
an end."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tapml_rpc.tracker.records import MAX_MESSAGE_BYTES
from tapml_rpc.tracker.websocket_entrance import WebSocketEntrance
from tapml_rpc.websocket.admission import Listening
from tapml_rpc.websocket.handshake import open_socket
from tests.rpc.tracker.trackers import PATIENCE_SECONDS, wait_for

TOO_MUCH = "it sends more than the tracker can read"
MOST_UNHEARD = 1024
EMPTY = b"\x82\x80" + bytes(4)
"""A frame with a message of no bytes; as all here, with a mask of zeros."""


def frame(nbytes: int) -> bytes:
    return b"\x82\xff" + nbytes.to_bytes(8) + bytes(4) + bytes(nbytes)


def _is_over(peer: socket.socket) -> bool:
    try:
        return not peer.recv(1 << 10)
    except ConnectionError:
        return True


class Entrance:
    """An entrance whose news wait until a test takes them."""

    def __init__(self) -> None:
        self.woken = 0
        self.take_from = MOST_UNHEARD * 1000
        self._taking = False
        self.taken: list[bytes | str] = []
        listening = Listening("127.0.0.1", 0, None, None, {})
        self.entrance = WebSocketEntrance(listening, (), 600.0, self._wake, lambda *call: None)

    def _wake(self) -> None:
        self.woken += 1
        if self.woken >= self.take_from and not self._taking:
            self._taking = True
            for _ in range(MOST_UNHEARD // 256 + 1):
                self.take()
            self._taking = False

    def take(self) -> None:
        """Take what there is, once."""
        self.entrance.hand_over(
            lambda sender, read: self.taken.append(sender.key),
            lambda key, why: self.taken.append(why),
        )

    def open(self) -> socket.socket:
        url = f"{self.entrance.address}/tracker"
        deadline = time.monotonic() + PATIENCE_SECONDS
        return open_socket(url, deadline=deadline, token=None, ssl_context=None)


@pytest.fixture
def entrance() -> Iterator[Entrance]:
    opened = Entrance()
    yield opened
    opened.entrance.close()


def test_nothing_is_taken_of_a_peer_after_its_end(entrance: Entrance) -> None:
    # Its end is the first news after so many messages; from there on all is taken at once, by the
    # door's own thread, while what came in the same piece is yet to be looked at.
    entrance.take_from = MOST_UNHEARD + 1
    with entrance.open() as peer:
        peer.sendall(EMPTY * (MOST_UNHEARD + 600))
        wait_for(lambda: TOO_MUCH in entrance.taken)
        entrance.entrance.close()
    assert entrance.taken[-1] == TOO_MUCH


def test_what_a_peer_may_leave_unheard_is_bounded_in_bytes(entrance: Entrance) -> None:
    with entrance.open() as peer:
        with suppress(OSError):
            peer.sendall(frame(MAX_MESSAGE_BYTES) * 32)
        peer.settimeout(PATIENCE_SECONDS)
        # Pings come until it is over.
        wait_for(lambda: _is_over(peer))
    entrance.take()
    # And what it left is nobody's to read.
    assert entrance.taken == [TOO_MUCH]


def test_peers_are_listened_to_in_turn(entrance: Entrance) -> None:
    with entrance.open() as talker, entrance.open() as other:
        talker.sendall(EMPTY * 200)
        wait_for(lambda: entrance.woken == 200)
        other.sendall(EMPTY * 2)
        wait_for(lambda: entrance.woken == 202)
        entrance.take()
        first, second = entrance.taken[:2]
        assert entrance.taken == [first, second] * 2 + [first] * 198
        assert first != second
