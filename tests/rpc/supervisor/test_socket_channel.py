"""A worker serves its client's connection: every bound checked, nothing lost, never for ever."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest

from tapml_rpc import wire
from tapml_rpc.client import Session
from tapml_rpc.device.interpreter import ClientGoneError
from tapml_rpc.link import Link
from tapml_rpc.supervisor.board import Board, make_board
from tapml_rpc.supervisor.pipe import Pipe
from tapml_rpc.supervisor.socket_channel import SocketChannel
from tapml_rpc.transport import PendingRead, Ticket
from tapml_rpc.welcome import Bounds
from tapml_rpc.zmtp import framing
from tapml_targets.errors import DeviceRestartedError
from tests.rpc.faults.ground import (
    Served,
    state_of,
    wait_for,
)
from tests.rpc.peers import RawPeer

PATIENCE = 60.0
NAMES = {"session": b"it", "epoch": b"life"}
BOUNDS = Bounds(unanswered=3, upload_window=300_000, commands=8)
LONG = 100_000
# More than lies in sockets, and no more than a client takes ahead.
MUCH = 15 << 20


def batch(sequence: int, *commands: object, **fields: object) -> bytes:
    given = {"type": "batch", "sequence": sequence, "commands": list(commands)}
    return wire.pack(given | NAMES | fields)


def message(packed: bytes, *chunks: bytes) -> bytes:
    sent = b""
    for place, frame in enumerate((packed, *chunks)):
        sent += framing.frame_head(len(frame), framing.MORE * (place < len(chunks))) + frame
    return sent


FIRST = message(batch(1, ["fence"]))


class Ends:
    """A worker's channel, and its client's and its supervisor's ends."""

    def __init__(self) -> None:
        self.client, accepted = socket.socketpair()
        self.client.settimeout(PATIENCE)
        ours, theirs = socket.socketpair()
        self.supervisor, self.pipe = Pipe(ours), Pipe(theirs)
        self.board = Board(make_board())
        self.channel = SocketChannel(accepted, FIRST, NAMES, BOUNDS, self.board, self.pipe)
        first = self.channel.next()
        assert first is not None and first.header["sequence"] == 1

    def heard(self, *parts: bytes) -> bool:
        """Whether the client hears these bytes next."""
        expected = b"".join(parts)
        return self.exactly(len(expected)) == expected

    def exactly(self, nbytes: int) -> bytes:
        """So many bytes that the client hears."""
        heard = bytearray()
        while len(heard) < nbytes and (more := self.client.recv(nbytes - len(heard))):
            heard += more
        return bytes(heard)

    def say(self, *parts: bytes) -> None:
        """Have the client send more than lies in sockets."""

        def send() -> None:
            with suppress(OSError):
                self.client.sendall(b"".join(parts))

        self.saying = threading.Thread(target=send)
        self.saying.start()

    def refusal(self) -> wire.Header:
        """The message that the client hears next."""
        head = self.exactly(2)
        nbytes = head[1]
        if head[0] & framing.LONG:
            nbytes = int.from_bytes(head[1:] + self.exactly(7))
        return wire.unpack(self.exactly(nbytes))

    def told(self) -> wire.Header:
        """What the supervisor is told."""
        while (frame := self.supervisor.next()) is None:
            assert self.supervisor.receive()
        return wire.unpack(frame.packed)

    def close(self) -> None:
        self.supervisor.close()
        self.client.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


def test_messages_are_taken_in_order_whatever_pieces_they_come_in(ends: Ends) -> None:
    ends.channel.answered(1)
    chunk = bytes(range(250)) * 400
    credit = wire.pack({"type": "credit", "bytes": 5} | NAMES)
    sent = message(batch(4, ["write", 1, 0, LONG, 0]), chunk) + message(credit)
    ends.client.sendall(sent[:30_000])
    assert ends.channel._receive() is False
    ends.say(sent[30_000:])
    found = ends.channel.next()
    assert found is not None and found.chunk == chunk and found.header["sequence"] == 4
    found = ends.channel.next()
    assert found is not None and found.header["bytes"] == 5
    assert (ends.board.taken, ends.board.messages) == (4, 3)


def test_memory_of_a_chunk_is_used_again_once_its_batch_is_answered(ends: Ends) -> None:
    ends.channel.answered(1)
    views = []
    for sequence in (2, 3, 4):
        ends.client.sendall(message(batch(sequence, ["fence"]), bytes([sequence]) * LONG))
        found = ends.channel.next()
        assert found is not None
        views.append(found.chunk)
        if sequence == 2:
            ends.channel.answered(2)
    assert views[0].obj is views[1].obj and views[1].obj is not views[2].obj
    assert views[1] == b"\3" * LONG and views[2] == b"\4" * LONG


@pytest.mark.parametrize(
    "sent, reason",
    [
        (message(batch(2, ["fence"], session=b"another")), "another session's"),
        (message(batch(2, ["fence"], epoch=b"another")), "started after"),
        (message(batch(1, ["fence"])), "does not follow"),
        (message(batch(2, *[["fence"]] * 9)), "commands"),
        (message(batch(2, ["fence"]), bytes(300_001)), "bytes wait for an answer"),
        (message(batch(2, ["fence"]), b"a", b"b"), "at most a chunk"),
        (message(wire.pack({"type": "unheard of"} | NAMES)), "unknown message type"),
        (message(wire.pack({"type": "credit", "bytes": -1} | NAMES)), "credit"),
        (message(b"\xc1 no header", bytes(LONG)), ""),
    ],
)
def test_what_breaks_a_bound_is_refused_and_the_next_message_is_taken(
    ends: Ends, sent: bytes, reason: str
) -> None:
    ends.say(sent, message(batch(7, ["fence"])))
    found = ends.channel.next()
    if found is None or found.header["sequence"] != 7:
        found = ends.channel.next()
    assert found is not None and found.header["sequence"] == 7
    refused = ends.refusal()
    assert refused["type"] == "error" and reason in refused["error"]["message"]
    assert ends.board.taken == 7


def test_batches_that_nobody_has_answered_are_counted_and_bounded(ends: Ends) -> None:
    ends.client.sendall(b"".join(message(batch(number, ["fence"])) for number in (2, 3, 4)))
    assert (found := ends.channel.next()) is not None and found.header["sequence"] == 2
    assert (found := ends.channel.next()) is not None and found.header["sequence"] == 3
    ends.client.sendall(message(wire.pack({"type": "credit", "bytes": 0} | NAMES)))
    assert (found := ends.channel.next()) is not None and found.header["type"] == "credit"
    assert "at most 3 may" in ends.refusal()["error"]["message"]


def test_who_lies_in_zmtp_reads_why_and_so_does_the_supervisor(ends: Ends) -> None:
    ends.client.sendall(framing.frame_head(wire.MAX_CHUNK_BYTES + 1))
    assert ends.channel.next() is None
    assert "of 4194305 bytes" in ends.refusal()["error"]["message"]
    told = ends.told()
    assert told["type"] == "lost" and "of 4194305 bytes" in told["why"]


def test_what_came_before_the_end_is_taken_and_then_the_supervisor_knows(ends: Ends) -> None:
    ends.client.sendall(message(batch(2, ["fence"])))
    ends.client.close()
    assert ends.channel.next() is not None
    assert ends.channel.next() is None
    assert ends.told() == {"type": "lost", "why": "its data connection is gone"}


def test_nothing_is_taken_behind_a_goodbye(ends: Ends) -> None:
    ends.client.sendall(message(wire.pack({"type": "goodbye"} | NAMES)))
    ends.client.sendall(message(batch(2, ["fence"])))
    assert ends.channel.next() is None
    assert ends.told()["type"] == "goodbye"


def test_the_end_of_the_session_ends_the_waiting(ends: Ends) -> None:
    ends.supervisor.close()
    assert ends.channel.next() is None
    with pytest.raises(ConnectionError):
        ends.channel.send(b"header", [bytes(MUCH)])
    assert ends.board.sending, "nothing must be said behind half a message"


def test_a_client_that_goes_within_an_answer_is_noticed(ends: Ends) -> None:
    closing = threading.Timer(0.2, ends.client.close)
    closing.start()
    with pytest.raises(ClientGoneError):
        ends.channel.send(b"header", [bytes(MUCH)])
    closing.join()


def test_an_answer_of_many_parts_goes_whole(ends: Ends) -> None:
    # A batch of many small reads: the system takes 1024 at once.
    parts: list[memoryview | bytes] = [index.to_bytes(4, "little") * 8 for index in range(1500)]
    ends.channel.send(b"header", parts)
    assert ends.heard(message(b"header", b"".join(parts)))
    assert not ends.board.sending


def test_heartbeats_are_answered_between_messages_and_never_within_one(ends: Ends) -> None:
    ping, pong = framing.command(b"PING", b"\0\0context"), framing.command(b"PONG", b"context")
    ends.client.sendall(ping + message(batch(2, ["fence"])))
    assert ends.channel.next() is not None
    assert ends.heard(pong)
    chunk = bytes(range(256)) * (MUCH >> 8)
    sending = threading.Thread(target=ends.channel.send, args=(b"header", [chunk]))
    sending.start()
    wait_for(lambda: ends.board.paused)
    ends.client.sendall(ping)
    assert ends.heard(message(b"header", chunk), pong)
    sending.join()


def test_while_a_command_runs_for_long_messages_are_received_and_heartbeats_answered(
    ends: Ends,
) -> None:
    ends.board.begin(1, 0, time.monotonic_ns())
    ends.client.sendall(framing.command(b"PING", b"\0\0") + message(batch(2, ["fence"])))
    assert ends.heard(framing.command(b"PONG"))
    wait_for(lambda: ends.board.taken == 2)
    ends.board.rest()
    found = ends.channel.next()
    assert found is not None and found.header["sequence"] == 2


def test_who_is_refused_and_takes_no_answer_is_given_no_more(ends: Ends) -> None:
    wrong = message(wire.pack({"type": "x" * 60} | NAMES)) * 40_000
    ends.client.settimeout(None)
    ends.say(wrong)
    with pytest.raises(ClientGoneError, match="takes none of its answers"):
        ends.channel.next()
    # What it says is not even received any more.
    assert not ends.channel._receive()
    ends.client.shutdown(socket.SHUT_RDWR)
    ends.saying.join(PATIENCE)


def test_no_program_that_a_worker_starts_has_the_connection(ends: Ends) -> None:
    ends.supervisor.send(b"header", descriptor=ends.client.fileno())
    while ends.pipe.next() is None:
        assert ends.pipe.receive()
    descriptor = ends.pipe.descriptors.popleft()
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


def test_reads_of_all_sizes_come_in_order_and_whole(server: Served) -> None:
    random = np.random.default_rng(7)
    data = random.integers(0, 256, 4 << 20, np.uint8)
    with server.connect("zmq") as session:
        buffer = session.allocate(data.nbytes)
        session.write(buffer, data)
        link = session._link
        sent = []
        for _ in range(60):
            nbytes = int(random.choice([10, 5_000, 70_000, 400_000, 600_000, 3_000_000]))
            start = int(random.integers(0, data.nbytes - nbytes))
            read = PendingRead(nbytes)
            ticket = link.send([["read", buffer.handle, start, nbytes]], b"", {0: read})
            # What is written behind it must not be what it reads.
            back = data[:100].tobytes()
            link.send([["write", buffer.handle, 0, 100, 0]], bytes(100))
            link.send([["write", buffer.handle, 0, 100, 0]], back)
            sent.append((ticket, read, data[start : start + nbytes]))
        for ticket, read, expected in sent:
            link.wait(ticket)
            assert read.result() == expected.data


def test_long_writes_land_where_they_belong_between_others(server: Served) -> None:
    data = np.random.default_rng(5).integers(0, 256, 5 << 20, np.uint8)
    with server.connect("zmq") as session:
        buffer = session.allocate(data.nbytes)
        for start in (4097, 1, 0):
            # The device may still be filling what is written next.
            session.fill(buffer, b"\3")
            session.write(buffer, data[start:], start)
            expected = bytes([3] * start) + data[start:][:9].tobytes()
            assert session.read(buffer, start + 9) == expected
        assert session.read(buffer) == data.data


def test_a_client_that_sends_much_and_takes_nothing_is_read_on(server: Served) -> None:
    with server.connect("zmq") as session:
        buffer = session.allocate(MUCH)
        session.fill(buffer, b"abcd")
        session.fence()
        read = PendingRead(MUCH)
        link = session._link
        assert isinstance(link, Link)
        asked = link.send([["read", buffer.handle, 0, MUCH]], b"", {0: read})
        # More than lies in sockets, while the worker waits for us to take its answer.
        piece = bytes(1 << 20)
        wrote = [
            link.send([["write", buffer.handle, start, len(piece), 0]], piece)
            for start in range(0, MUCH, len(piece))
        ]
        link.wait(asked)
        assert bytes(read.result()) == b"abcd" * (MUCH // 4)
        for ticket in wrote:
            link.wait(ticket)
        assert not any(session.read(buffer, MUCH))


def stuck(server: Served, stack: ExitStack) -> tuple[Session, int, PendingRead, Ticket]:
    """A session whose client reads none of a long answer, and its worker, which waits for it."""
    session, worker = server.open("zmq")
    stack.enter_context(session)
    buffer = session.allocate(MUCH)
    session.fill(buffer, b"abcd")
    session.fence()
    read = PendingRead(MUCH)
    ticket = session._link.send([["read", buffer.handle, 0, MUCH]], b"", {0: read})
    wait_for(lambda: polls(worker))
    return session, worker, read, ticket


def polls(pid: int) -> bool:
    """Whether a process waits for a socket, with a message half sent or not."""
    number = Path(f"/proc/{pid}/syscall").read_text("ascii").split()[0]
    return number.isdigit() and int(number) in (7, 73, 271)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_harmed_within_a_message_is_told_of_and_no_lost_link(
    server: Served, how: signal.Signals
) -> None:
    with ExitStack() as stack:
        session, worker, _, _ = stuck(server, stack)
        os.kill(worker, how)
        # Its client reads on and finds half a message.
        expected = "signal SIGKILL" if how == signal.SIGKILL else "stood still"
        with pytest.raises(DeviceRestartedError, match=expected) as caught:
            session.fence()
        assert "last commands" in str(caught.value)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_harmed_while_it_waits_is_told_of_with_what_it_had_taken(
    server: Served, how: signal.Signals
) -> None:
    session, worker = server.open("zmq")
    with session:
        buffer = session.allocate(4321)
        session.fence()
        os.kill(worker, how)
        expected = "signal SIGKILL" if how == signal.SIGKILL else "stood still"
        with pytest.raises(DeviceRestartedError, match=expected) as caught:
            session.read(buffer, 4000)
        received = str(caught.value).partition("last commands sent:")[0]
        assert "allocate(" in received and "4321" in received


def test_who_reads_none_of_an_answer_is_served_on_and_gets_all_of_it(server: Served) -> None:
    with ExitStack() as stack:
        session, _, read, ticket = stuck(server, stack)
        assert server.books.pong()["type"] == "pong"
        assert isinstance(session._link, Link)
        watched = session._link
        before = watched.pong
        wait_for(lambda: watched.pong is not before)
        session._link.wait(ticket)
        assert bytes(read.result()) == b"abcd" * (MUCH // 4)


def test_who_leaves_within_an_answer_leaves_nothing(server: Served) -> None:
    with ExitStack() as stack:
        session, worker, _, _ = stuck(server, stack)
        session.close()
        wait_for(lambda: state_of(worker) in ("X", "Z"))


def test_what_a_worker_refuses_comes_with_a_reason(server: Served) -> None:
    with RawPeer(server.address("zmq")) as peer:
        for nonsense, reason in (
            ({"type": "batch", "sequence": 1, "commands": []}, "does not follow"),
            ({"type": "batch", "sequence": 1 << 30, "commands": 7}, "commands"),
            ({"type": "unheard of"}, "unknown message type"),
        ):
            assert peer.batch(["fence"])[0]["type"] == "done"
            peer.send(nonsense)
            answer = peer.receive()[0]
            assert answer["type"] == "error" and reason in answer["error"]["message"]
        assert peer.batch(["fence"])[0]["type"] == "done"
