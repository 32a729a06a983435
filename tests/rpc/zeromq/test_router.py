"""Whose connection to a ROUTER has gone, whatever the numbers of descriptors say meanwhile."""

from __future__ import annotations

import errno
import socket as plain_sockets
import struct
import time
from collections.abc import Iterator

import pytest
import zmq

from tapml_rpc import wire
from tapml_rpc.zeromq.router import (
    RouterBounds,
    RouterWatch,
    bind_router,
    split,
    take,
    unpack_control,
)
from tapml_targets.errors import ProtocolError

PATIENCE = 60.0

Context = zmq.Context[zmq.Socket[bytes]]


@pytest.fixture
def context() -> Iterator[Context]:
    made: Context = zmq.Context()
    yield made
    made.destroy(linger=0)


class Frame:
    """The first frame of a message: whose it is, and by which descriptor it came."""

    def __init__(self, identity: bytes, descriptor: int) -> None:
        self.bytes = identity
        self._descriptor = descriptor

    def get(self, option: int) -> int:
        assert option == zmq.SRCFD
        if self._descriptor < 0:
            raise zmq.ZMQError(errno.EINVAL)
        return self._descriptor


class Connections:
    """A ROUTER's monitor that says what a test tells it to, and the watch that hears it."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._says = context.socket(zmq.PAIR)
        self.watch = RouterWatch(self)  # type: ignore[arg-type]

    def fileno(self) -> int:
        return 0

    def monitor(self, where: str, events: int) -> None:
        assert events == zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
        self._says.bind(where)

    def open(self, descriptor: int) -> None:
        self._say(zmq.EVENT_ACCEPTED, descriptor)

    def shut(self, descriptor: int) -> None:
        self._say(zmq.EVENT_DISCONNECTED, descriptor)

    def heard(self, identity: bytes, descriptor: int) -> None:
        self.watch.heard(Frame(identity, descriptor))  # type: ignore[arg-type]

    def gone(self) -> list[bytes]:
        """What has gone by now: a look later."""
        return self.watch.gone() + self.watch.gone()

    def _say(self, event: int, descriptor: int) -> None:
        self._says.send_multipart([struct.pack("=hi", event, descriptor), b"tcp://here"])


@pytest.fixture
def connections(context: Context) -> Connections:
    return Connections(context)


def test_a_peer_that_had_hung_up_before_it_was_accepted_is_gone(
    connections: Connections,
) -> None:
    connections.heard(b"ada", -1)
    assert connections.gone() == [b"ada"]


def test_who_has_gone_is_told_once_and_a_look_later(connections: Connections) -> None:
    connections.open(5)
    connections.open(6)
    connections.heard(b"ada", 5)
    connections.heard(b"bob", 6)
    connections.heard(b"ada", 5)
    assert connections.gone() == []
    connections.shut(5)
    # What had come from it before is taken first.
    assert connections.watch.gone() == []
    assert connections.watch.gone() == [b"ada"]
    assert connections.gone() == []


def test_who_never_said_anything_is_nobody(connections: Connections) -> None:
    connections.open(5)
    connections.shut(5)
    assert connections.gone() == []


def test_a_number_that_is_used_again_is_another_connection(connections: Connections) -> None:
    connections.open(5)
    connections.heard(b"ada", 5)
    connections.shut(5)
    connections.open(5)
    # Nobody has looked in between.
    connections.heard(b"bob", 5)
    assert connections.gone() == [b"ada"]
    connections.shut(5)
    assert connections.gone() == [b"bob"]


def test_a_message_may_be_taken_after_its_connections_end(connections: Connections) -> None:
    connections.open(5)
    connections.shut(5)
    connections.heard(b"ada", 5)
    assert connections.gone() == [b"ada"]


def test_a_message_may_be_taken_when_its_number_is_anothers(connections: Connections) -> None:
    connections.open(5)
    connections.shut(5)
    connections.open(5)
    connections.heard(b"ada", 5)
    connections.heard(b"bob", 5)
    assert connections.gone() == [b"ada"]
    connections.shut(5)
    assert connections.gone() == [b"bob"]


def test_the_last_message_of_a_lost_connection_costs_nobody_else_its_own(
    connections: Connections,
) -> None:
    connections.open(5)
    connections.heard(b"ada", 5)
    connections.shut(5)
    assert connections.gone() == [b"ada"]
    connections.open(5)
    connections.heard(b"bob", 5)
    # It waited in its own queue while bob's was read.
    connections.heard(b"ada", 5)
    assert connections.gone() == []
    connections.shut(5)
    assert connections.gone() == [b"bob"]


def test_a_real_connection_is_missed_and_its_messages_are_taken_first(context: Context) -> None:
    socket, watch = bind_router(context, "tcp://127.0.0.1:0", RouterBounds())
    socket.rcvtimeo = int(PATIENCE * 1000)
    address = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    for count in (1, 30):
        peer = context.socket(zmq.DEALER)
        peer.connect(address)
        for _ in range(count):
            peer.send(b"message")
        peer.close(linger=int(PATIENCE * 1000))
        identities = set()
        for _ in range(count):
            frames = take(socket, wait=True)
            assert frames is not None
            watch.heard(frames[0])
            identities.add(frames[0].bytes)
        assert take(socket) is None
        gone: list[bytes] = []
        deadline = time.monotonic() + PATIENCE
        while not gone:
            assert time.monotonic() < deadline
            gone = watch.gone()
        assert set(gone) == identities
    watch.close()


def test_a_flood_of_connections_that_nobody_looks_at_holds_up_no_other(context: Context) -> None:
    """A kernel may run meanwhile; where libzmq can say no more of them, it waits."""
    socket, watch = bind_router(context, "tcp://127.0.0.1:0", RouterBounds())
    socket.rcvtimeo = int(PATIENCE * 1000)
    address = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    for _ in range(12):
        # As many as wait to be accepted.
        flood = [plain_sockets.create_connection((host, int(port)), PATIENCE) for _ in range(90)]
        for each in flood:
            each.close()
    peer = context.socket(zmq.DEALER)
    peer.connect(address)
    peer.send(b"message")
    assert take(socket, wait=True) is not None
    watch.close()


@pytest.mark.parametrize("count", [1, 4])
def test_a_message_is_a_header_and_at_most_a_chunk(count: int) -> None:
    with pytest.raises(ProtocolError, match="a header and at most a chunk"):
        split([b""] * count)


def test_what_libzmq_takes_beyond_the_bounds_is_refused_in_words() -> None:
    with pytest.raises(ProtocolError, match="a header of 65537 bytes; on control one has 1 to"):
        unpack_control(bytes(wire.MAX_STRANGER_BYTES + 1))
