"""The tracker's ``tcp://`` address without keys: what strangers may do there, and to whom."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from selectors import DefaultSelector

import pytest

from tapml_rpc import wire
from tapml_rpc.tracker import list_devices, request_device
from tapml_rpc.tracker.lease import Lease
from tapml_rpc.tracker.plain_entrance import PlainEntrance
from tapml_rpc.tracker.records import (
    HEARTBEAT_SECONDS,
    HEARTBEAT_TIMEOUT_SECONDS,
    MAX_MESSAGE_BYTES,
    Sender,
)
from tapml_rpc.zmtp import framing
from tapml_rpc.zmtp.listener import STRANGER_REFUSALS, STRANGER_SECONDS
from tests.rpc.strangers import (
    HANDSHAKE,
    PAST_THE_HANDSHAKE,
    PATIENCE,
    frame,
    heard,
    hung_up_on,
    memory_bytes,
    send_without_end,
    stranger,
)
from tests.rpc.tracker.trackers import TrackerProcess, registered

REGISTER = frame(wire.pack({"type": "register"}))
LIST = frame(wire.pack({"type": "list", "versions": [1]}))


@pytest.fixture
def held(shared_tracker: TrackerProcess) -> Iterator[Lease]:
    """A lease that a client holds beside it all; whatever happens, it keeps it."""
    with (
        registered(shared_tracker.address, "beside"),
        request_device(shared_tracker.address, name="beside") as lease,
    ):
        yield lease
        (listed,) = list_devices(shared_tracker.address)
        assert (listed.name, [each.id for each in listed.leases]) == ("beside", [lease.id])
        lease.check()


class Notes:
    """Takes the part of a tracker, and notes what comes."""

    def __init__(self, **options: int) -> None:
        self.selector = DefaultSelector()
        self.entrance = PlainEntrance(self, self.selector, "tcp://127.0.0.1:*", **options)
        self.taken: list[Sender] = []
        self.ended: list[str] = []
        self.answer = b"answer"
        self.devices: set[bytes] = set()

    def take(self, sender: Sender, read: Callable[[], wire.Header]) -> bool:
        header = read()
        self.taken.append(sender)
        if header["type"] == "register":
            self.devices.add(sender.key)
        self.entrance.send(sender.key, self.answer)
        return bool(header["type"] != "nonsense")

    def needs(self, key: bytes) -> bool:
        return key in self.devices

    def gone(self, key: bytes, why: str) -> None:
        self.ended.append(why)

    def probe(self) -> None:
        raise AssertionError("it knows by itself who is gone")

    def show(self, error: Exception) -> None:
        raise error

    def connect(self, says: bytes = b"") -> socket.socket:
        return stranger(self.entrance.address, HANDSHAKE + says)

    def step(self) -> None:
        for key, events in self.selector.select(0.01):
            key.data(events)
        self.entrance.serve()

    def serve_until(self, done: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline
            self.step()

    def look(self, seconds: float) -> None:
        """Look at a clock that is so far ahead."""
        self.entrance.check(time.monotonic() + seconds)
        self.step()


@contextmanager
def noting(**options: int) -> Iterator[Notes]:
    notes = Notes(**options)
    with closing(notes.selector), closing(notes.entrance):
        yield notes


@pytest.fixture
def notes() -> Iterator[Notes]:
    with noting() as notes:
        yield notes


def test_a_message_without_an_end_takes_no_memory_and_is_hung_up_on(
    shared_tracker: TrackerProcess, held: Lease
) -> None:
    before = memory_bytes(shared_tracker.process.pid)
    with stranger(shared_tracker.address) as connection:
        send_without_end(connection)
    assert memory_bytes(shared_tracker.process.pid) - before < 64 << 20


def test_the_beginnings_of_many_long_messages_take_a_headers_bound_each(
    shared_tracker: TrackerProcess, held: Lease
) -> None:
    before = memory_bytes(shared_tracker.process.pid)
    half = frame(bytes(wire.MAX_CHUNK_BYTES))[:-1]
    with ExitStack() as stack:
        for start in (b"", frame(b"header", more=True)) * 16:
            stack.enter_context(stranger(shared_tracker.address)).sendall(start + half)
        list_devices(shared_tracker.address)
        assert memory_bytes(shared_tracker.process.pid) - before < 32 << 20


def test_a_header_that_is_too_long_is_refused_with_the_bound_and_the_next_is_taken(
    shared_tracker: TrackerProcess, held: Lease
) -> None:
    with stranger(shared_tracker.address) as connection:
        connection.sendall(frame(bytes(MAX_MESSAGE_BYTES + 1)))
        refused = heard(connection)
        connection.sendall(LIST)
        assert b"devices" in connection.recv(4096)
    assert refused["type"] == "refused"
    assert "is a header of 1 to 65536 bytes" in refused["error"]["message"]


def test_who_announces_more_than_any_message_has_is_told_so_and_hung_up_on(
    shared_tracker: TrackerProcess, held: Lease
) -> None:
    with stranger(shared_tracker.address) as connection:
        connection.sendall(framing.frame_head(wire.MAX_CHUNK_BYTES + 1) + bytes(1 << 20))
        refused = heard(connection)
        assert refused["error"]["kind"] == "ProtocolError"
        assert "of 4194305 bytes" in refused["error"]["message"]
        assert hung_up_on(connection)


@pytest.mark.parametrize(
    "lie",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3,
        b"\xff" * 100,
        HANDSHAKE + b"\xff" * 100,
        HANDSHAKE + framing.frame_head(1 << 62, framing.MORE),
        HANDSHAKE + framing.command(b"PING", bytes(40)),
        framing.GREETING + framing.ready(b"PUB"),
    ],
)
def test_garbage_in_zmtp_costs_its_sender_alone(
    shared_tracker: TrackerProcess, held: Lease, lie: bytes
) -> None:
    with stranger(shared_tracker.address, lie) as connection:
        assert hung_up_on(connection)


def test_a_registered_device_is_not_pushed_out_by_strangers_nor_a_client_kept_out() -> None:
    """There is an end to connections, or sooner to descriptors; here it is these."""
    with (
        TrackerProcess() as tracker,
        registered(tracker.address, "stays") as device,
        request_device(tracker.address, name="stays") as lease,
        ExitStack() as strangers,
    ):
        has = len([*Path(f"/proc/{tracker.process.pid}/fd").iterdir()])
        resource.prlimit(tracker.process.pid, resource.RLIMIT_NOFILE, (has + 20, has + 20))
        first, *_ = [strangers.enter_context(stranger(tracker.address)) for _ in range(60)]
        (listed,) = list_devices(tracker.address, timeout=PATIENCE)
        assert [each.id for each in listed.leases] == [lease.id]
        assert hung_up_on(first)
        lease.check()
        assert device.registered


def test_a_full_house_lets_go_of_the_oldest_that_has_nothing() -> None:
    with noting(most=2) as notes, notes.connect(REGISTER):
        notes.serve_until(lambda: notes.devices)
        with notes.connect(LIST) as second:
            notes.serve_until(lambda: len(notes.taken) == 2)
            with notes.connect(LIST):
                notes.serve_until(lambda: len(notes.taken) == 3)
                assert hung_up_on(second)
                assert notes.ended == ["its connection dropped"]


def test_a_connection_that_ends_is_known_without_a_word(notes: Notes) -> None:
    notes.connect(REGISTER).close()
    notes.serve_until(lambda: notes.ended)
    (sender,) = notes.taken
    assert (sender.identity, sender.host) == ("loopback", "127.0.0.1")
    assert notes.ended == ["its connection dropped"]


def test_who_gives_no_sign_of_life_when_asked_for_one_is_gone(notes: Notes) -> None:
    with notes.connect(REGISTER) as silent, notes.connect(REGISTER) as living:
        notes.serve_until(lambda: len(notes.taken) == 2)
        asked = HEARTBEAT_SECONDS
        notes.look(asked)
        # So long the tracker itself stood still.
        notes.entrance.excuse(100)
        notes.look(asked + 100)
        assert framing.ping() in silent.recv(4096)
        living.sendall(framing.pong(bytes(2)))
        notes.step()
        assert not notes.ended
        notes.look(asked + 100 + HEARTBEAT_TIMEOUT_SECONDS + 1)
        notes.serve_until(lambda: notes.ended)
        assert notes.ended == ["it gives no sign of life"]
        living.sendall(LIST)
        notes.serve_until(lambda: len(notes.taken) == 3)


def test_half_a_message_is_not_kept_for_long_not_for_a_device_either(notes: Notes) -> None:
    with notes.connect(REGISTER + LIST[:-2]) as slow:
        notes.serve_until(lambda: notes.taken)
        notes.look(STRANGER_SECONDS - 1)
        assert not notes.ended
        # It is alive.
        slow.sendall(LIST[-2:-1])
        notes.step()
        notes.look(STRANGER_SECONDS + 1)
        assert notes.ended == ["its connection dropped"]
        assert hung_up_on(slow)


def test_who_asks_and_asks_and_takes_no_answer_is_given_no_more(notes: Notes) -> None:
    notes.answer = bytes(1 << 20)
    with notes.connect() as deaf:
        deaf.settimeout(0)
        notes.serve_until(lambda: notes.ended or deaf.send(LIST) == 0)
    assert notes.ended == ["it takes none of its messages"]
    # What lies in the sockets' own memory, and one answer more.
    assert len(notes.taken) < 64


def test_a_stranger_is_refused_so_often_and_then_hung_up_on(notes: Notes) -> None:
    nonsense = frame(wire.pack({"type": "nonsense"}))
    with notes.connect(REGISTER + nonsense * (STRANGER_REFUSALS + 1) + LIST):
        notes.serve_until(lambda: len(notes.taken) == STRANGER_REFUSALS + 3)
    with notes.connect(nonsense * (STRANGER_REFUSALS + 1) + LIST) as tiresome:
        notes.serve_until(lambda: "all its messages are refused" in notes.ended)
        assert hung_up_on(tiresome)


def test_all_that_is_said_to_a_peer_begins_behind_the_handshake(notes: Notes) -> None:
    with notes.connect(LIST) as connection:
        notes.serve_until(lambda: notes.taken)
        received = b""
        while len(received) < PAST_THE_HANDSHAKE + 2 + len(notes.answer):
            received += connection.recv(4096)
    assert received[PAST_THE_HANDSHAKE:] == frame(notes.answer)
