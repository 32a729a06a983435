"""Both ends of a connection, each with libzmq at the other one, and with peers that lie."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from tapml_rpc.transport import EndedError
from tapml_rpc.wire import MAX_CHUNK_BYTES
from tapml_rpc.zmtp import framing
from tapml_rpc.zmtp.incoming import AHEAD_BYTES, Incoming
from tapml_rpc.zmtp.stream import Stream
from tapml_targets.errors import ProtocolError, SetupError

PATIENCE = 60.0
HANDSHAKE = framing.GREETING + framing.ready(b"DEALER")


def fresh(packed: bytes, nbytes: int) -> memoryview:
    return memoryview(bytearray(nbytes))


def until(take: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while (message := take()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return message


class Peer:
    """The receiving end of an accepted connection, which has greeted."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.next = Incoming(connection, b"ROUTER", fresh, connection.sendall).next
        connection.sendall(framing.GREETING + framing.ready(b"ROUTER"))


@contextmanager
def accepted() -> Iterator[tuple[Peer, socket.socket]]:
    """A peer of ours, and the plain socket of whoever connected."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = socket.create_connection(listener.getsockname())
        peer = Peer(listener.accept()[0])
    with other:
        yield peer, other
    peer.connection.close()


@pytest.fixture(scope="module")
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.mark.parametrize("nbytes", [0, 1, 255, 256, 70_000, MAX_CHUNK_BYTES])
def test_a_dealer_of_libzmq_and_our_peer_exchange_messages(
    context: zmq.Context[zmq.Socket[bytes]], nbytes: int
) -> None:
    chunk = bytes(range(256)) * (nbytes // 256) + bytes(nbytes % 256)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dealer = context.socket(zmq.DEALER)
        dealer.connect(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        peer = Peer(listener.accept()[0])
    with dealer:
        dealer.send_multipart([b"header", chunk])
        packed, received, frames = until(peer.next)
        assert (packed, bytes(received), frames) == (b"header", chunk, 2)
        dealer.send(b"h" * 100_000)
        assert until(peer.next) == (b"h" * 100_000, b"", 1)
        answer = bytes(nbytes % 7) + chunk[:10_000]
        peer.connection.sendall(framing.frame_head(len(answer)) + answer)
        assert dealer.poll(int(1000 * PATIENCE))
        assert dealer.recv_multipart() == [answer]
    peer.connection.close()


def test_a_router_of_libzmq_and_our_stream_exchange_messages(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.HEARTBEAT_IVL, 20)
    # Otherwise as short, and a busy machine does not answer within it.
    router.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(1000 * PATIENCE))
    router.rcvtimeo = router.sndtimeo = int(1000 * PATIENCE)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    memory = bytearray(3 << 20)

    def place(packed: bytes, nbytes: int) -> memoryview:
        return memoryview(memory)[:nbytes]

    connection = socket.create_connection(("127.0.0.1", port))
    stream = Stream(connection, time.monotonic() + PATIENCE, place)
    with router:
        for chunk in (b"", b"c" * 300, b"d" * (3 << 20)):
            stream.send(b"header", chunk)
            stream.beat()
            identity, *frames = router.recv_multipart()
            assert frames == ([b"header", chunk] if chunk else [b"header"])
            router.send_multipart([identity, b"answer", chunk])
            # Heartbeats come in between, and are answered.
            message = until(lambda: stream.receive(50))
            assert message[0] == b"answer"
            assert memory[: len(chunk)] == chunk
        stream.close(b"goodbye")
        assert router.recv_multipart()[1] == b"goodbye"


def test_a_ping_between_the_frames_of_a_message_is_answered() -> None:
    with accepted() as (peer, other):
        ping = framing.command(b"PING", b"\0\0context")
        first = framing.frame_head(2, framing.MORE) + b"hi"
        other.sendall(HANDSHAKE + first + ping + framing.frame_head(3) + b"you")
        assert until(peer.next) == (b"hi", b"you", 2)
        expected = (
            framing.GREETING + framing.ready(b"ROUTER") + framing.command(b"PONG", b"context")
        )
        other.settimeout(PATIENCE)
        heard = b""
        while len(heard) < len(expected):
            heard += other.recv(4096)
        assert heard == expected


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.binary(max_size=400), st.none() | st.binary(max_size=400)), max_size=6),
    st.integers(1, 97),
)
def test_messages_come_whole_however_they_are_cut(
    messages: list[tuple[bytes, bytes | None]], step: int
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        incoming = Incoming(ours, b"ROUTER", fresh, lambda command: None)
        sent = HANDSHAKE
        for header, chunk in messages:
            sent += framing.frame_head(len(header), framing.MORE * (chunk is not None)) + header
            sent += b"" if chunk is None else framing.frame_head(len(chunk)) + chunk
        found = []
        for start in range(0, len(sent), step):
            theirs.sendall(sent[start : start + step])
            while (message := incoming.next()) is not None:
                found.append(message)
        assert [(bytes(header), bytes(chunk)) for header, chunk, _ in found] == [
            (header, chunk or b"") for header, chunk in messages
        ]
        assert [frames for *_, frames in found] == [
            1 + (chunk is not None) for _, chunk in messages
        ]


@pytest.mark.parametrize(
    "lie",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n" + bytes(64),
        framing.GREETING[:12] + b"CURVE" + framing.GREETING[17:],
        framing.GREETING + framing.ready(b"SUB"),
        framing.GREETING + framing.command(b"ERROR", b"\3bad"),
        framing.GREETING + framing.frame_head(1 << 40, framing.COMMAND),
        framing.GREETING + framing.frame_head(3) + b"abc",
        HANDSHAKE + framing.frame_head(MAX_CHUNK_BYTES + 1),
        HANDSHAKE + framing.frame_head((1 << 63) - 1, framing.MORE),
        HANDSHAKE + b"\xff" + bytes(20),
        HANDSHAKE + framing.frame_head(5000, framing.COMMAND),
        HANDSHAKE + framing.frame_head(3, framing.COMMAND) + b"\x09ab",
        HANDSHAKE + framing.command(b"PING", bytes(40)),
        HANDSHAKE + (framing.frame_head(0, framing.MORE)) * 5000,
    ],
)
def test_a_peer_that_lies_is_hung_up_on(lie: bytes) -> None:
    with accepted() as (peer, other), pytest.raises(ProtocolError):
        other.sendall(lie)
        until(peer.next)


def test_half_a_message_and_then_the_end_is_the_end() -> None:
    with accepted() as (peer, other), pytest.raises(EndedError):
        other.sendall(HANDSHAKE + framing.frame_head(3, framing.MORE) + b"abc\1")
        other.shutdown(socket.SHUT_WR)
        until(peer.next)


def test_a_chunk_that_nobody_wants_is_read_and_forgotten() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        incoming = Incoming(ours, b"ROUTER", lambda packed, nbytes: None, lambda command: None)
        unwanted = framing.frame_head(1, framing.MORE) + b"h" + framing.frame_head(1 << 20)
        writer = threading.Thread(
            target=theirs.sendall,
            args=(HANDSHAKE + unwanted + bytes(1 << 20) + framing.frame_head(4) + b"next",),
        )
        writer.start()
        assert until(incoming.next) == (b"h", b"", 2)
        assert until(incoming.next) == (b"next", b"", 1)
        writer.join()


def test_others_have_their_turn_between_the_long_frames_of_one_message() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        incoming = Incoming(ours, b"ROUTER", fresh, lambda command: None)
        long = bytes(AHEAD_BYTES)
        head = framing.frame_head(len(long), framing.MORE)
        theirs.sendall(HANDSHAKE + head + long)
        assert incoming.next() is None
        assert incoming.pending
        assert incoming.halfway
        theirs.sendall(framing.frame_head(0))
        assert until(incoming.next)[2] == 2
        assert not incoming.halfway


def test_a_message_that_was_cut_off_is_not_completed_by_a_beat() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = socket.create_connection(listener.getsockname())
        other = listener.accept()[0]
    with other:
        other.sendall(framing.GREETING + framing.ready(b"ROUTER"))
        stream = Stream(connection, time.monotonic() + PATIENCE, fresh)
        with pytest.raises(KeyboardInterrupt):
            stream.send(b"header", bytes(64 << 20), check=interrupt)
        assert stream.torn
        other.settimeout(PATIENCE)
        while not select.select([], [connection], [], 0)[1]:
            other.recv(1 << 20)
        stream.beat()
        stream.abort()
        heard = b""
        while data := other.recv(1 << 20):
            heard = heard[-100:] + data
        assert b"PONG" not in heard


def test_a_server_that_speaks_no_zmtp_or_says_nothing_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = socket.create_connection(listener.getsockname())
        other = listener.accept()[0]
        with other, pytest.raises(SetupError, match="does not greet"):
            other.sendall(b"HTTP/1.1 400 Bad Request\r\n" + bytes(64))
            Stream(connection, time.monotonic() + PATIENCE, fresh)
        connection = socket.create_connection(listener.getsockname())
        with listener.accept()[0], pytest.raises(SetupError, match="in time"):
            Stream(connection, time.monotonic() + 0.05, fresh)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=30),
            st.builds(framing.frame_head, st.integers(0, 1 << 40), st.sampled_from([0, 1, 4])),
            st.binary(max_size=30).map(lambda body: framing.frame_head(len(body), 1) + body),
            st.builds(
                framing.command, st.sampled_from([b"PING", b"PONG", b"X"]), st.binary(max_size=30)
            ),
        ),
        max_size=12,
    ),
    st.integers(0, len(HANDSHAKE)),
)
def test_any_bytes_are_messages_or_the_end_of_the_connection(
    pieces: list[bytes], greeted: int
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        incoming = Incoming(ours, b"ROUTER", lambda packed, nbytes: None, lambda command: None)
        theirs.sendall(HANDSHAKE[:greeted] if greeted % 7 == 0 else HANDSHAKE)
        theirs.sendall(b"".join(pieces))
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises((EndedError, ProtocolError)):
            for _ in range(1000):
                incoming.next()
