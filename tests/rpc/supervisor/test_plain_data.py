"""Plain data connections before they are a worker's: with a front that takes notes, and served."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from tapml_rpc import wire
from tapml_rpc.client import connect
from tapml_rpc.flow import Forwarder
from tapml_rpc.supervisor.plain_data import (
    HALF_SECONDS,
    HANDSHAKE_SECONDS,
    MOST_CONNECTIONS,
    PARTING_SECONDS,
    DataListener,
)
from tapml_rpc.zmtp import framing
from tapml_targets.errors import ProtocolError
from tests.rpc.peers import RawPeer, ServerProcess

PATIENCE = 60.0
HANDSHAKE = framing.GREETING + framing.ready(b"DEALER")
BATCH = wire.pack({"type": "batch", "session": b"it", "sequence": 7})


class Desk:
    """A front with one session, called ``it``, that notes what it is given."""

    def __init__(self, most: int = MOST_CONNECTIONS) -> None:
        self.given: list[tuple[socket.socket, bytes]] = []
        self.forwarder = Forwarder()
        self.data = DataListener(self.forwarder, "tcp://127.0.0.1:0", self.claim, most=most)

    def claim(self, header: wire.Header, connection: socket.socket, received: bytes) -> None:
        if header.get("session") != b"it":
            raise ProtocolError("no such session")
        self.given.append((connection, received))

    def connect(self, sent: bytes = HANDSHAKE) -> socket.socket:
        host, _, port = self.data.address.removeprefix("tcp://").rpartition(":")
        connection = socket.create_connection((host, int(port)))
        connection.settimeout(PATIENCE)
        connection.sendall(sent)
        return connection

    def serve_until(self, done: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline
            self.forwarder.step(0.01)

    def count(self) -> int:
        # But for the listener, and what wakes the loop.
        return len(self.forwarder._selector.get_map()) - 2


@contextmanager
def serving(**options: int) -> Iterator[Desk]:
    desk = Desk(**options)
    yield desk
    desk.data.close()
    desk.forwarder.close()


@pytest.fixture
def desk() -> Iterator[Desk]:
    with serving() as desk:
        yield desk


def message(packed: bytes, *chunks: bytes) -> bytes:
    sent = b""
    for place, frame in enumerate((packed, *chunks)):
        sent += framing.frame_head(len(frame), framing.MORE * (place < len(chunks))) + frame
    return sent


def answered(connection: socket.socket) -> wire.Header:
    """The first message after the server's handshake."""
    left = len(framing.GREETING + framing.ready(b"ROUTER"))
    heard = b""
    while True:
        heard += connection.recv(4096)
        _, nbytes, size = framing.parse_head(heard, left, len(heard)) if heard[left:] else (0, 0, 0)
        if size and len(heard) >= left + size + nbytes:
            return wire.unpack(heard[left + size :])


def waits(connection: socket.socket) -> bool:
    """Whether a message has come behind the server's handshake."""
    peek = socket.MSG_PEEK | socket.MSG_DONTWAIT
    handshake = len(framing.GREETING + framing.ready(b"ROUTER"))
    return len(connection.recv(4096, peek)) > handshake


@pytest.mark.parametrize("chunks", [(), (b"short",), (b"c" * 70_000,), (b"", b"more"), (b"",)])
def test_a_connection_goes_to_its_session_with_all_that_has_come(
    desk: Desk, chunks: tuple[bytes, ...]
) -> None:
    whole = message(BATCH, *chunks) + message(BATCH, b"behind it")
    with desk.connect(HANDSHAKE + whole):
        desk.serve_until(lambda: desk.given)
        assert not desk.count()
        ((connection, received),) = desk.given
        with connection:
            connection.setblocking(True)
            received += connection.recv(len(whole) - len(received), socket.MSG_WAITALL)
        assert received == whole


def test_a_message_for_nobody_is_read_and_answered_and_the_next_one_is_taken(desk: Desk) -> None:
    stray = wire.pack({"type": "batch", "session": b"no", "sequence": 3})
    sent = HANDSHAKE + message(stray, b"c" * 70_000) + message(BATCH)
    with desk.connect(sent) as connection:
        desk.serve_until(lambda: desk.given)
        assert answered(connection)["sequence"] == 3


def test_who_has_no_session_is_refused_so_often_and_then_hung_up_on(desk: Desk) -> None:
    with desk.connect(HANDSHAKE + message(b"") * 1000):
        desk.serve_until(desk.count)
        desk.serve_until(lambda: not desk.count())


def test_a_message_of_three_frames_is_answered(desk: Desk) -> None:
    stray = wire.pack({"type": "batch", "session": b"no", "sequence": 7})
    with desk.connect(HANDSHAKE + message(stray, b"c" * 200, b"more")) as connection:
        desk.serve_until(desk.count)
        desk.serve_until(lambda: waits(connection))
        reply = answered(connection)
    assert reply["sequence"] == 7 and not desk.given


def test_half_a_header_of_nobodys_is_not_kept_for_long(desk: Desk) -> None:
    with desk.connect(HANDSHAKE):
        pass
    with desk.connect(HANDSHAKE + message(bytes(50_000))[:-1]):
        desk.serve_until(lambda: any(each._incoming.halfway for each in desk.data._newcomers))
        now = time.monotonic()
        desk.data.check(now + HALF_SECONDS - 1)
        assert desk.count() == 1
        desk.data.check(now + HALF_SECONDS + 1)
        assert not desk.count()


def test_who_does_not_end_its_handshake_is_hung_up_on(desk: Desk) -> None:
    with desk.connect(HANDSHAKE[:-1]) as slow, desk.connect(HANDSHAKE):
        desk.serve_until(lambda: desk.count() == 2)
        desk.serve_until(lambda: any(each._incoming.ready for each in desk.data._newcomers))
        desk.data.check(time.monotonic() + HANDSHAKE_SECONDS + 1)
        assert desk.count() == 1
        while slow.recv(4096):
            pass


def test_who_sends_on_behind_what_ends_its_connection_hears_why_before_the_end(desk: Desk) -> None:
    head = framing.frame_head(wire.MAX_CHUNK_BYTES + 1)
    with desk.connect(HANDSHAKE) as wordy:
        desk.serve_until(lambda: any(each._incoming.ready for each in desk.data._newcomers))
        wordy.sendall(head)
        desk.serve_until(lambda: waits(wordy))
        wordy.sendall(bytes(100_000))
        # A connection that was reset would have forgotten it.
        assert "of 4194305 bytes" in answered(wordy)["error"]["message"]
        assert wordy.recv(1) == b""
        wordy.sendall(bytes(100_000))
        assert desk.count() == 1
        desk.data.check(time.monotonic() + PARTING_SECONDS + 1)
        assert not desk.count()


def test_a_full_house_lets_go_of_the_oldest() -> None:
    with serving(most=2) as desk, desk.connect() as first, desk.connect():
        desk.serve_until(lambda: desk.count() == 2)
        with desk.connect(HANDSHAKE + message(BATCH)):
            desk.serve_until(lambda: desk.given)
            with suppress(ConnectionResetError):
                while first.recv(4096):
                    pass


def test_strangers_that_fill_a_server_end_no_session_that_has_sent_nothing_yet() -> None:
    with ServerProcess(device="cpu") as server, ExitStack() as stack:
        with RawPeer(server.address) as first:
            host, _, port = first.welcome["data_address"].removeprefix("tcp://").rpartition(":")
        session = stack.enter_context(connect(server.address, timeout=PATIENCE))
        strangers = []
        for _ in range(MOST_CONNECTIONS):
            strangers.append(socket.create_connection((host, int(port)), PATIENCE))
            stack.enter_context(strangers[-1])
        # One too many: the first of them makes room, the session does not.
        with suppress(ConnectionResetError):
            while strangers[0].recv(4096):
                pass
        session.fence()


def test_liars_beside_it_disturb_no_session_and_one_that_loses_its_data_connection_ends() -> None:
    with ServerProcess(device="cpu") as server, RawPeer(server.address) as good:
        host, _, port = good.welcome["data_address"].removeprefix("tcp://").rpartition(":")
        payload = bytes(range(256)) * 512
        length = len(payload)
        good.batch(["allocate", 1, length], ["write", 1, 0, length, 0], chunk=payload)
        for lie in (
            b"GET / HTTP/1.1\r\n\r\n" * 10,
            HANDSHAKE + b"\xff" * 100,
            HANDSHAKE + framing.frame_head(1 << 40),
            HANDSHAKE + message(BATCH, payload)[:-1],
        ):
            with socket.create_connection((host, int(port))) as liar:
                liar.settimeout(PATIENCE)
                liar.sendall(lie)
                liar.shutdown(socket.SHUT_WR)
                with suppress(ConnectionResetError):
                    while liar.recv(4096):
                        pass
            assert good.batch(["read", 1, 0, length])[1] == payload
        good.data.close(linger=0)
        deadline = time.monotonic() + PATIENCE
        while (reply := good.ping())["type"] == "pong":
            assert time.monotonic() < deadline
        assert reply["type"] == "event"
        assert "its data connection is gone" in reply["error"]["message"]


def test_a_session_is_told_of_a_frame_too_long_and_of_its_servers_end() -> None:
    with (
        ServerProcess(device="cpu") as server,
        RawPeer(server.address) as good,
        RawPeer(server.address) as huge,
    ):
        host, _, port = huge.welcome["data_address"].removeprefix("tcp://").rpartition(":")
        own = {key: huge.welcome[key] for key in ("session", "epoch")}
        credit = message(wire.pack({"type": "credit", "bytes": 0} | own))
        with socket.create_connection((host, int(port)), PATIENCE) as data:
            data.sendall(HANDSHAKE + credit + framing.frame_head(wire.MAX_CHUNK_BYTES + 1))
            data.sendall(bytes(wire.MAX_CHUNK_BYTES + 1))
            told = [answered(data), huge.hear()]
        assert [each["type"] for each in told] == ["error", "event"]
        assert told[0]["error"]["kind"] == "ProtocolError"
        assert all("of 4194305 bytes" in each["error"]["message"] for each in told)
        server.signal(signal.SIGTERM)
        last = good.hear()
        assert last["type"] == "event" and "the server ends" in last["error"]["message"]
