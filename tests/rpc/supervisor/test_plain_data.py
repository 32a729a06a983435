"""Plain data connections: with a front and sessions that only take notes, and in a supervisor."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from selectors import DefaultSelector
from typing import Any

import pytest

from tapml_rpc import wire
from tapml_rpc.client import connect
from tapml_rpc.supervisor.plain_data import PlainData
from tapml_rpc.supervisor.ring import Room
from tapml_rpc.zmtp import framing
from tapml_rpc.zmtp.listener import (
    HANDSHAKE_SECONDS,
    MOST_CONNECTIONS,
    STRANGER_REFUSALS,
    STRANGER_SECONDS,
)
from tapml_rpc.zmtp.parting import PARTING_SECONDS
from tapml_rpc.zmtp.peer import Peer
from tapml_targets.errors import ProtocolError
from tests.rpc.peers import RawPeer, ServerProcess

PATIENCE = 60.0
HANDSHAKE = framing.GREETING + framing.ready(b"DEALER")
BATCH = wire.pack({"type": "batch", "session": b"it", "sequence": 7})


class Session:
    """Takes the part of a relay, and notes what comes."""

    def __init__(self) -> None:
        self.ended = ""
        self.taken: list[Any] = []
        self.rooms = 0
        self.refused: list[Room] = []
        self.memory = memoryview(bytearray(1 << 20))
        self.lines: list[Peer] = []
        self.lends = False

    def share(self, peer: Peer) -> None:
        self.lines.append(peer)

    def lend_reading(self, peer: Peer) -> None:
        if self.lends:
            assert peer.lend_reading()

    def room(self, header: wire.Header, nbytes: int) -> Room | None:
        self.rooms += 1
        return Room(64, self.memory[:nbytes]) if nbytes > 100 else None

    def refuse(self, room: Room) -> None:
        self.refused.append(room)

    def accept(self, header: wire.Header, packed: bytes, chunk: Any) -> None:
        self.taken.append((header, packed, chunk))

    def give_up(self, why: str) -> None:
        self.ended = why


class Desk:
    """A front with one session, called ``it``."""

    def __init__(self, most: int = MOST_CONNECTIONS) -> None:
        self.session = Session()
        self.selector = DefaultSelector()
        self.data = PlainData(self, self.selector, "tcp://127.0.0.1:0", most=most)

    def claim(self, header: wire.Header, who: str, end: Any) -> Any:
        if header.get("session") != b"it":
            raise ProtocolError("no such session")
        return self.session, None

    def settle(self, relay: Any) -> None:
        pass

    def show(self, error: Exception) -> None:
        raise error

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
            for key, events in self.selector.select(0.01):
                key.data(events)
            self.data.serve()

    def count(self) -> int:
        return len(self.selector.get_map()) - 1


@contextmanager
def serving(**options: int) -> Iterator[Desk]:
    desk = Desk(**options)
    yield desk
    desk.data.close()
    desk.selector.close()


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


def test_a_long_chunk_is_read_to_its_room_and_a_short_one_elsewhere(desk: Desk) -> None:
    with desk.connect(HANDSHAKE + message(BATCH, b"c" * 70_000) + message(BATCH, b"short")):
        desk.serve_until(lambda: len(desk.session.taken) == 2)
    (_, packed, room), (_, _, short) = desk.session.taken
    assert packed == BATCH
    assert room.start == 64
    assert bytes(room.memory) == b"c" * 70_000
    assert bytes(short) == b"short"


def test_a_connection_that_is_lent_is_left_alone_and_then_read_on_from_what_came(
    desk: Desk,
) -> None:
    desk.session.lends = True
    with desk.connect(HANDSHAKE + message(BATCH)) as connection:
        desk.serve_until(lambda: desk.session.taken)
        (peer,) = desk.session.lines
        # Only the listener is watched.
        assert not desk.count()
        connection.sendall(message(BATCH, b"there"))
        assert not desk.selector.select(0.05)
        assert peer.has_more() and not desk.data.serve() and len(desk.session.taken) == 1
        desk.session.lends = False
        peer.have_reading(message(BATCH, b"ahead"))
        desk.serve_until(lambda: len(desk.session.taken) == 3)
    assert [bytes(each[2]) for each in desk.session.taken] == [b"", b"ahead", b"there"]


def test_a_message_for_nobody_is_read_and_answered_and_the_next_one_is_taken(desk: Desk) -> None:
    stray = wire.pack({"type": "batch", "session": b"no", "sequence": 3})
    sent = HANDSHAKE + message(stray, b"c" * 70_000) + message(BATCH)
    with desk.connect(sent) as connection:
        desk.serve_until(lambda: desk.session.taken)
        assert answered(connection)["sequence"] == 3


def test_a_message_of_three_frames_gives_its_room_back_and_is_answered(desk: Desk) -> None:
    with desk.connect(HANDSHAKE + message(BATCH, b"c" * 200, b"more")) as connection:
        desk.serve_until(lambda: desk.session.refused)
        reply = answered(connection)
    assert reply["sequence"] == 7
    assert "at most a chunk" in reply["error"]["message"]
    assert not desk.session.taken


def test_a_session_ends_with_its_connection_even_in_the_middle_of_a_message(desk: Desk) -> None:
    half = message(BATCH, b"c" * 70_000)[:-1]
    with desk.connect(HANDSHAKE + message(BATCH) + half):
        desk.serve_until(lambda: desk.session.taken)
    desk.serve_until(lambda: desk.session.ended)
    assert "data connection" in desk.session.ended
    assert len(desk.session.taken) == 1
    assert not desk.count()


def test_half_a_chunk_of_a_session_that_has_ended_is_not_kept_for_long(desk: Desk) -> None:
    with desk.connect(HANDSHAKE + message(BATCH, b"c" * 70_000)[:-1]):
        desk.serve_until(lambda: desk.session.rooms)
        later = time.monotonic() + 1000
        desk.data.check(later)
        assert desk.count() == 1
        desk.session.ended = "its worker died"
        desk.data.check(later + STRANGER_SECONDS - 1)
        assert desk.count() == 1
        desk.data.check(later + STRANGER_SECONDS + 1)
        assert not desk.count()


def test_where_a_worker_ended_within_a_message_its_client_soon_sees_the_end(desk: Desk) -> None:
    # A libzmq client that went on under another session would be heard and never answered.
    with desk.connect(HANDSHAKE + message(BATCH)) as client:
        desk.serve_until(lambda: desk.session.taken)
        later = time.monotonic() + 1000
        desk.data.check(later)
        desk.session.lines[0].mute()
        desk.session.ended = "closed by the client"
        desk.data.check(later + PARTING_SECONDS - 1)
        assert desk.count() == 1
        desk.data.check(later + PARTING_SECONDS + 1)
        assert not desk.count()
        client.settimeout(PATIENCE)
        while client.recv(1 << 16):
            pass


def test_who_has_no_session_is_refused_so_often_and_then_hung_up_on(desk: Desk) -> None:
    with desk.connect(HANDSHAKE + message(b"") * (STRANGER_REFUSALS + 1)):
        desk.serve_until(desk.count)
        desk.serve_until(lambda: not desk.count())


def test_who_has_a_session_may_be_refused_as_often_as_it_likes(desk: Desk) -> None:
    with desk.connect(HANDSHAKE + message(BATCH) + message(b"") * (STRANGER_REFUSALS + 1)) as one:
        one.sendall(message(BATCH))
        desk.serve_until(lambda: len(desk.session.taken) == 2)


def test_who_does_not_end_its_handshake_is_hung_up_on(desk: Desk) -> None:
    with desk.connect(HANDSHAKE[:-1]) as slow, desk.connect(HANDSHAKE + message(BATCH)):
        desk.serve_until(lambda: desk.session.taken and desk.count() == 2)
        desk.data.check(time.monotonic() + HANDSHAKE_SECONDS + 1)
        assert desk.count() == 1
        while slow.recv(4096):
            pass


def test_who_sends_on_behind_what_ends_its_connection_hears_why_before_the_end(desk: Desk) -> None:
    head = framing.frame_head(wire.MAX_CHUNK_BYTES + 1)
    with desk.connect(HANDSHAKE + message(BATCH) + head) as wordy:
        desk.serve_until(lambda: desk.session.ended)
        assert "of 4194305 bytes" in desk.session.ended
        wordy.sendall(bytes(100_000))
        # A connection that was reset would have forgotten it.
        assert "of 4194305 bytes" in answered(wordy)["error"]["message"]
        assert wordy.recv(1) == b""
        wordy.sendall(bytes(100_000))
        assert desk.count() == 1
        desk.data.check(time.monotonic() + PARTING_SECONDS + 1)
        assert not desk.count()


def test_a_full_house_lets_go_of_the_oldest_without_a_session() -> None:
    with serving(most=2) as desk, desk.connect(HANDSHAKE + message(BATCH)):
        desk.serve_until(lambda: desk.session.taken)
        with desk.connect() as second:
            desk.serve_until(lambda: desk.count() == 2)
            with desk.connect(HANDSHAKE + message(BATCH)):
                desk.serve_until(lambda: len(desk.session.taken) == 2)
                while second.recv(4096):
                    pass
                assert desk.count() == 2
                assert not desk.session.ended


def test_strangers_that_fill_a_server_end_no_session_that_has_sent_nothing_yet() -> None:
    module = "tapml_rpc.supervisor.serve"
    with ServerProcess(module=module, device="cpu") as server, ExitStack() as stack:
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
    module = "tapml_rpc.supervisor.serve"
    with ServerProcess(module=module, device="cpu") as server, RawPeer(server.address) as good:
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
    module = "tapml_rpc.supervisor.serve"
    with (
        ServerProcess(module=module, device="cpu") as server,
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
