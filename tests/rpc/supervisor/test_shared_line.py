"""A worker sends on its client's connection: in turn with its supervisor, and never over it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tapml_rpc import wire
from tapml_rpc.client import Session
from tapml_rpc.link import Link
from tapml_rpc.pending import PendingRead
from tapml_rpc.running_batch import RunningBatch
from tapml_rpc.server_session import Message
from tapml_rpc.supervisor.answers import Answers
from tapml_rpc.supervisor.board import Board
from tapml_rpc.supervisor.gate import Gate
from tapml_rpc.supervisor.pipe import INLINE_BYTES, NOWHERE, Frame, Pipe
from tapml_rpc.supervisor.ring import Ring, make_memory
from tapml_rpc.supervisor.shared_line import GATE, LINE, SharedLine
from tapml_rpc.supervisor.worker_loop import BoardClock, Worker
from tapml_rpc.transport import Ticket
from tapml_rpc.zmtp import framing
from tapml_rpc.zmtp.peer import Peer
from tapml_targets.errors import DeviceRestartedError
from tests.rpc.faults.ground import Served, state_of, wait_for

PATIENCE = 60.0
RING_BYTES = 1 << 20
DATA = wire.pack({"type": "data"})
DONE = wire.pack({"type": "done"})
# More than lies in sockets, and no more than a client takes ahead.
LONG = 15 << 20
LARGE = memoryview(b"l" * (INLINE_BYTES + 1))
# Takes the gate it is given, as a worker that is within a message, says so, and stays.
HOLDER = """
import sys, time
from tapml_rpc.supervisor.gate import Gate
gate = Gate(int(sys.argv[1]))
assert gate.enter()
gate.halfway = True
print("in", flush=True)
sys.stdin.readline()
gate.halfway = False
gate.leave()
print("out", flush=True)
sys.stdin.readline()
"""


class Ends:
    """A supervisor's and a worker's ends of one session, and the client's socket."""

    def __init__(self) -> None:
        self.client, accepted = socket.socketpair()
        self.client.settimeout(PATIENCE)
        self.peer = Peer(accepted, 0.0, lambda packed, nbytes: None)
        greeting = framing.GREETING + framing.ready(b"ROUTER")
        assert self.client.recv(len(greeting), socket.MSG_WAITALL) == greeting
        ours, theirs = socket.socketpair()
        self.pipe = Pipe(ours, most_unsent=1 << 20)
        self.worker = Pipe(theirs)
        descriptor = make_memory(RING_BYTES, "test")
        self.board = Board(Ring(make_memory(RING_BYTES, "test")))
        self.down = Ring(os.dup(descriptor))
        self.ring = Ring(descriptor)
        self.line = SharedLine()
        self.answers = Answers(self.worker, self.ring, self.board)

    def open(self) -> int:
        """Share the connection; the worker's descriptor of the gate."""
        self.line.open(self.peer, self.pipe)
        kinds: list[str] = []
        while len(kinds) < 2:
            assert self.worker.receive()
            while (frame := self.worker.next()) is not None:
                kinds.append(wire.unpack(frame.packed)["type"])
        assert kinds == [LINE, GATE]
        connection, gate = self.worker.descriptors
        self.worker.descriptors.clear()
        self.connection = socket.socket(fileno=connection)
        return gate

    def frame(self) -> Frame:
        """What comes through the pipe."""
        while (frame := self.pipe.next()) is None:
            self.pipe.receive()
        return frame

    def heard(self, *parts: bytes | memoryview) -> bool:
        """Whether the client hears these bytes next."""
        expected = b"".join(parts)
        return self.client.recv(len(expected), socket.MSG_WAITALL) == expected


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.peer.release()
    ends.client.close()
    ends.pipe.close()
    ends.worker.close()


def share(ends: Ends) -> None:
    # Within one process the system's lock keeps nobody out; who is told what is the same.
    gate = Gate(ends.open())
    ends.answers.open_line(ends.connection, gate)


def message(packed: bytes, *parts: bytes | memoryview) -> bytes:
    return b"".join(framing.message_parts(packed, parts))


def test_what_is_large_goes_to_the_client_and_is_noted_without_a_message(ends: Ends) -> None:
    share(ends)
    ends.answers.send(DATA, [LARGE])
    ends.answers.send(DONE, [], answers=7)
    assert ends.heard(message(DATA, LARGE), message(DONE))
    assert ends.line.newly_answered() == 7
    assert ends.line.newly_answered() is None
    ends.answers.send(DONE, [LARGE], answers=8)
    assert ends.heard(message(DONE, LARGE))
    assert ends.line.newly_answered() == 8
    assert ends.pipe.receive() and ends.pipe.next() is None


def test_what_is_small_goes_by_the_supervisor_and_is_not_overtaken(ends: Ends) -> None:
    share(ends)
    ends.answers.send(DONE, [b"small"], answers=1)
    assert ends.frame() == Frame(DONE, b"small", NOWHERE, 0)
    assert not ends.answers.direct(), "the client has not got it"
    ends.answers.send(DONE, [LARGE], answers=2)
    frame = ends.frame()
    assert ends.down.view(frame.start, frame.nbytes) == LARGE
    for _ in range(2):
        ends.line.count_passed()
    assert ends.answers.direct()
    assert ends.line.newly_answered() is None


def test_the_answer_to_a_payload_goes_to_the_client_unless_the_next_one_is_arriving(
    ends: Ends,
) -> None:
    share(ends)
    ends.answers.send(DONE, [], answers=1, brought_much=True)
    assert ends.heard(message(DONE))
    assert ends.line.newly_answered() == 1
    ends.board.receives = True
    ends.answers.send(DONE, [], answers=2, brought_much=True)
    assert ends.frame().packed == DONE


def test_a_worker_that_reads_answers_what_is_small_as_well(ends: Ends) -> None:
    share(ends)
    ends.answers.reads = True
    ends.answers.send(DONE, [b"small"], answers=1)
    assert ends.heard(message(DONE, b"small"))
    assert ends.line.newly_answered() == 1


def test_a_held_result_leaves_before_what_it_lies_in_changes(ends: Ends) -> None:
    share(ends)
    memory = bytearray(LARGE)
    ends.answers.send(DATA, [memoryview(memory)])
    ends.answers.flush()
    memory[:] = bytes(len(memory))
    assert ends.heard(message(DATA, LARGE))


def test_sessions_that_share_the_device_send_by_the_supervisor(ends: Ends) -> None:
    share(ends)
    ends.board.shared = True
    ends.answers.send(DATA, [LARGE])
    assert ends.down.view(ends.frame().start, len(LARGE)) == LARGE


def test_an_answer_of_many_parts_goes_whole(ends: Ends) -> None:
    # A batch of many small reads: the system takes 1024 parts at once.
    share(ends)
    parts = [index.to_bytes(4, "little") * 8 for index in range(1500)]
    ends.answers.send(DATA, [LARGE])
    ends.answers.send(DONE, [*parts], answers=1)
    assert ends.heard(message(DATA, LARGE), message(DONE, *parts))


def test_time_in_which_a_client_took_nothing_is_not_the_next_commands(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(ends.worker, ends.ring, ends.ring, allow_native=False)
    flushed: list[float] = []
    worker._answers.held = (DATA, [LARGE])
    monkeypatch.setattr(worker._answers, "flush", lambda: flushed.append(time.monotonic()))
    clock = BoardClock(worker._board, worker._answers)
    clock.begin(RunningBatch(worker._session, Message(b"", 1, 0, [["fence"]], memoryview(b""))))
    running = Board(ends.ring).running()
    assert running is not None and running[2] >= flushed[0]


def test_no_program_that_a_worker_starts_has_the_connection(ends: Ends) -> None:
    gate = ends.open()
    assert not os.get_inheritable(ends.connection.fileno())
    assert not os.get_inheritable(gate)
    os.close(gate)


def test_room_that_was_taken_and_not_needed_is_the_rings_again(ends: Ends) -> None:
    share(ends)
    room = ends.answers.answer(len(LARGE))
    room[:] = LARGE
    ends.answers.send(DONE, [room], answers=1)
    assert ends.heard(message(DONE, LARGE))
    assert ends.ring.reserve(RING_BYTES) is not None


@pytest.fixture
def holder(ends: Ends) -> Iterator[subprocess.Popen[str]]:
    gate = ends.open()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(gate)],
        pass_fds=[gate],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    yield process
    process.kill()
    process.communicate()


def test_the_supervisor_waits_for_the_end_of_the_workers_message(
    ends: Ends, holder: subprocess.Popen[str]
) -> None:
    assert ends.peer.send(b"later")
    assert ends.peer.unsent_bytes
    assert ends.line.halfway
    assert holder.stdin is not None and holder.stdout is not None
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "out\n"
    ends.line.settle()
    assert ends.heard(message(b"later"))
    assert not ends.peer.unsent_bytes


def test_after_a_worker_that_died_within_a_message_nothing_is_sent_and_nobody_is_hung_up_on(
    ends: Ends, holder: subprocess.Popen[str]
) -> None:
    left = []
    ends.peer.send(b"later", [b"chunk"], sent=lambda: left.append(1))
    holder.kill()
    holder.wait()
    ends.line.close()
    assert left == [1], "its memory may go"
    assert not ends.peer.send(b"more")
    assert ends.peer.holds, "its client is hung up on when it stays for long"
    assert not ends.peer.closed
    ends.client.setblocking(False)
    with pytest.raises(BlockingIOError):
        ends.client.recv(1)


def test_nothing_follows_half_a_message_before_its_worker_is_known_to_have_died(
    ends: Ends, holder: subprocess.Popen[str]
) -> None:
    assert ends.peer.send(b"later")
    holder.kill()
    holder.wait()
    ends.line.settle()
    assert ends.peer.send(b"more")
    ends.client.setblocking(False)
    with pytest.raises(BlockingIOError):
        ends.client.recv(1)
    ends.line.close()
    assert not ends.peer.send(b"at the end")


def test_after_a_session_the_connection_is_the_supervisors_alone(ends: Ends) -> None:
    share(ends)
    ends.line.close()
    for _ in range(2):
        assert ends.peer.send(b"refused")
        assert ends.heard(message(b"refused"))


def test_who_wants_to_send_within_a_long_answer_is_told_when_it_is_his_turn(ends: Ends) -> None:
    share(ends)
    gate = ends.line._gate
    assert gate is not None
    ends.answers.send(DATA, [LARGE])
    gate.wanted = True
    # No new message begins before it has been his turn.
    ends.answers.send(DONE, [], answers=1)
    assert ends.down.view(ends.frame().start, len(LARGE)) == LARGE
    assert ends.frame().packed == DONE


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


def stuck(server: Served, stack: ExitStack) -> tuple[Session, int, PendingRead, Ticket]:
    """A session whose client reads none of a long answer, and its worker, which waits for it."""
    session, worker = server.open("zmq")
    stack.enter_context(session)
    buffer = session.allocate(LONG)
    session.fill(buffer, b"abcd")
    session.fence()
    read = PendingRead(LONG)
    ticket = session._link.send([["read", buffer.handle, 0, LONG]], b"", {0: read})
    wait_for(lambda: polls(worker))
    return session, worker, read, ticket


def polls(pid: int) -> bool:
    """Whether a process waits for a socket to take more, and not for its next batch."""
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


def test_who_reads_none_of_an_answer_is_served_on_and_gets_all_of_it(server: Served) -> None:
    with ExitStack() as stack:
        session, _, read, ticket = stuck(server, stack)
        assert server.books.pong()["type"] == "pong"
        assert isinstance(session._link, Link)
        watched = session._link
        before = watched.pong
        wait_for(lambda: watched.pong is not before)
        session._link.wait(ticket)
        assert bytes(read.result()) == b"abcd" * (LONG // 4)


def test_who_leaves_within_an_answer_leaves_nothing(server: Served) -> None:
    with ExitStack() as stack:
        session, worker, _, _ = stuck(server, stack)
        session.close()
        wait_for(lambda: state_of(worker) in ("X", "Z"))
