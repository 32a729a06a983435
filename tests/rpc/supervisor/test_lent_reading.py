"""A worker reads its client's connection: short batches alone, and never for longer than it may."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import cast

import numpy as np
import pytest

from tapml_rpc import wire
from tapml_rpc.bounds import Bounds
from tapml_rpc.link import Link
from tapml_rpc.pending import PendingRead
from tapml_rpc.supervisor.last_commands import LastCommands
from tapml_rpc.supervisor.pipe import NOWHERE, Frame
from tapml_rpc.supervisor.shared_reading import (
    MOST_CHUNK_BYTES,
    MOST_HEADER_BYTES,
    Taken,
)
from tapml_rpc.supervisor.turns import Turns
from tapml_rpc.supervisor.uploads import Uploads
from tapml_rpc.supervisor.worker_process import WorkerProcess
from tapml_rpc.zmtp import framing
from tapml_targets.errors import DeviceRestartedError
from tests.rpc.faults.ground import Served, state_of, wait_for
from tests.rpc.peers import RawPeer
from tests.rpc.supervisor.readings import NAMES, Ends, batch, lent, message, reads

PATIENCE = 60.0
LONG = 15 << 20


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


def test_short_batches_and_credits_are_taken_in_order_and_noted(ends: Ends) -> None:
    first, second = batch(4, ["fence"]), batch(9, ["write", 1, 0, 3, 0])
    credit = wire.pack({"type": "credit", "bytes": 5} | NAMES)
    beat = framing.command(b"PONG")
    ends.client.sendall(message(first) + beat + message(credit) + message(second, b"abc"))
    assert ends.next() == (wire.unpack(first), Frame(first, b"", NOWHERE, 0))
    assert ends.reading.next(4, busy=True) == (wire.unpack(credit), Frame(credit, b"", NOWHERE, 0))
    found = ends.reading.next(4, busy=False)
    assert found == (wire.unpack(second), Frame(second, b"abc", NOWHERE, 0))
    assert ends.reading.next(9, busy=False) is None and ends.reading.here()
    assert ends.shared.messages == 3
    taken = [Taken(4, 0, first), Taken(9, 3, second)]
    assert ends.shared.taken_since(0) == (2, taken)
    assert ends.shared.taken_since(1) == (2, taken[1:])


def test_a_message_that_comes_in_pieces_is_taken_once_it_is_whole(ends: Ends) -> None:
    packed = batch(4, ["fill", 1, 0, 300, b"x" * 300])
    whole = message(packed, b"y" * 400)
    for start in range(0, len(whole) - 1, 90):
        ends.client.sendall(whole[start : min(start + 90, len(whole) - 1)])
        assert ends.next() is None
    assert ends.reading.here(), "the supervisor may have it, and nobody must"
    assert ends.left() == whole[:-1]
    ends.client.sendall(whole[-1:])
    assert ends.next() == (wire.unpack(packed), Frame(packed, b"y" * 400, NOWHERE, 0))


@pytest.mark.parametrize(
    "sent",
    [
        message(wire.pack({"type": "goodbye"} | NAMES)),
        message(wire.pack({"type": "blob", "sequence": 4, "operation": "holds"} | NAMES)),
        message(batch(4, ["fence"], session=b"another")),
        message(batch(4, ["fence"], epoch=b"another")),
        message(batch(3, ["fence"])),
        message(batch(4, ["fence"], stream=1 << 20)),
        message(batch(4, ["program", "p", []])),
        message(batch(4, ["fence"], commands="none")),
        message(batch(4, ["fill", 1, 0, 8, b"x" * MOST_HEADER_BYTES])),
        message(batch(4, ["fence"]), bytes(MOST_CHUNK_BYTES + 1)),
        # Not all of that has come, nor need it.
        message(batch(4, ["fence"]), bytes(MOST_CHUNK_BYTES + 1))[:-MOST_CHUNK_BYTES],
        framing.frame_head(2, framing.MORE) + b"ab" + framing.frame_head(1, framing.MORE) + b"c",
        message(b"\xc1 no header"),
        message(b"\x92\x01\x02"),
        framing.command(b"PING", b"\0\0"),
        b"\xff" * 9,
    ],
)
@pytest.mark.parametrize("before", [b"", message(batch(3, ["fence"]))])
def test_what_is_another_thing_is_left_to_the_supervisor_to_the_last_byte(
    ends: Ends, sent: bytes, before: bytes
) -> None:
    ends.client.sendall(before + sent)
    if before:
        assert ends.next(2) is not None
        assert ends.reading.next(3, busy=False) is None
    else:
        assert ends.next(3) is None
    assert not ends.reading.here() and not ends.shared.lent
    assert ends.left() == sent


def test_a_batch_is_left_where_it_may_not_be_run_now(ends: Ends) -> None:
    ends.client.sendall(message(batch(4, ["fence"])))
    assert ends.next(busy=True) is None
    assert not ends.shared.lent
    assert ends.left() == message(batch(4, ["fence"]))


def test_the_end_is_left_to_the_supervisor(ends: Ends) -> None:
    ends.client.close()
    assert ends.next() is None
    assert not ends.reading.here() and not ends.shared.halfway


def test_nothing_is_read_once_the_supervisor_has_the_reading_back(ends: Ends) -> None:
    ends.shared.lent = 0
    ends.client.sendall(b"of the next message")
    assert ends.next() is None and not ends.reading.here()
    assert ends.connection.recv(100) == b"of the next message"


def test_what_was_sent_before_it_is_lent_again_comes_first(ends: Ends) -> None:
    # The worker was busy, and has not noticed that the supervisor read in between.
    ends.shared.lent = 0
    ends.shared.hand_over(2)
    sent = message(batch(9, ["fence"]))
    ends.client.sendall(sent)
    assert ends.next() is None and not ends.reading.here()
    assert ends.shared.lent == 2 and not ends.left()
    ends.reading.begin(2)
    assert ends.next() is not None
    assert not ends.left()


def test_what_a_worker_writes_of_its_batches_is_not_believed_unseen() -> None:
    lies = [
        Taken(3, 0, batch(3, ["fence"])),
        Taken(1 << 63, 0, batch(4, ["fence"])),
        Taken(5, 0, b"no header"),
        Taken(6, 0, batch(6, commands=7)),
    ]
    # Nothing is handed to it here.
    worker = cast("WorkerProcess", None)
    uploads = Uploads(b"it", worker, Bounds(), Turns(), LastCommands(), lambda send: send())
    known = batch(3, ["fence"])
    uploads.adopt(Taken(3, 0, known), -1)
    assert not any(uploads.remember(each) for each in lies)
    assert uploads.remember(Taken(4, 0, batch(4, ["fence"])))


def test_a_session_with_company_is_not_lent_and_one_that_is_hears_of_it() -> None:
    turns, told = Turns(), []
    turns.begin(b"a", 1)
    assert not turns.lend(b"b", lambda: told.append("b"))
    assert turns.lend(b"a", lambda: told.append("a"))
    turns.end(b"a", 1)
    assert turns.begin(b"a", 1) and not told
    turns.end(b"a", 1)
    assert turns.begin(b"b", 1) and told == ["a"]
    # It may have begun something by itself.
    assert turns.shared(b"b")
    turns.have_back(b"a")
    assert not turns.shared(b"b")


def test_short_and_long_messages_come_in_order_whoever_reads(server: Served) -> None:
    random = np.random.default_rng(11)
    data = random.integers(0, 256, 4 << 20, np.uint8)
    with ExitStack() as stack:
        session, _ = lent(server, stack)
        buffer = session.allocate(data.nbytes)
        for turn in range(80):
            # Mostly short ones, so that the reading goes to the worker and back.
            nbytes = int(
                random.choice([10, 5_000, 30_000, 40_000, 3_000_000], p=[0.3] * 3 + [0.05] * 2)
            )
            start = int(random.integers(0, data.nbytes - nbytes))
            piece = random.integers(0, 256, nbytes, np.uint8)
            with session.batch() as pending:
                pending.write(buffer, piece, start)
                read = pending.read(buffer, nbytes, start)
            assert read.result() == piece.data, turn
            assert session.read(buffer, nbytes, start) == piece.data


def test_a_second_session_has_its_turns_and_the_first_is_read_by_the_supervisor(
    server: Served,
) -> None:
    with ExitStack() as stack:
        first, worker = lent(server, stack)
        # Another binding is served by another thread.
        second = stack.enter_context(server.connect("websocket"))

        def back() -> bool:
            second.fence()
            # A worker that is woken by nothing does not know that it reads no more.
            first.fence()
            return state_of(worker) == "S" and not reads(worker)

        wait_for(back)
        first.fence()
        second.fence()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_harmed_while_it_reads_is_told_of_with_what_it_had_taken(
    server: Served, how: signal.Signals
) -> None:
    with ExitStack() as stack:
        session, worker = lent(server, stack)
        buffer = session.allocate(4321)
        session.fence()
        assert reads(worker) or session.read(buffer, 5) is not None
        os.kill(worker, how)
        expected = "signal SIGKILL" if how == signal.SIGKILL else "stood still"
        with pytest.raises(DeviceRestartedError, match=expected) as caught:
            session.read(buffer, 4000)
        received = str(caught.value).partition("last commands sent:")[0]
        assert "allocate(" in received and "4321" in received


def test_a_client_that_sends_much_and_takes_nothing_is_read_on(server: Served) -> None:
    with ExitStack() as stack:
        session, _ = lent(server, stack)
        buffer = session.allocate(LONG)
        session.fill(buffer, b"abcd")
        session.fence()
        read = PendingRead(LONG)
        link = session._link
        assert isinstance(link, Link)
        asked = link.send([["read", buffer.handle, 0, LONG]], b"", {0: read})
        # More than lies in sockets, while the worker waits for us to take its answer.
        piece = bytes(1 << 20)
        wrote = [
            link.send([["write", buffer.handle, start, len(piece), 0]], piece)
            for start in range(0, LONG, len(piece))
        ]
        link.wait(asked)
        assert bytes(read.result()) == b"abcd" * (LONG // 4)
        for ticket in wrote:
            link.wait(ticket)
        assert not any(session.read(buffer, LONG))


def test_who_leaves_while_a_worker_reads_leaves_nothing(server: Served) -> None:
    with ExitStack() as stack:
        session, worker = lent(server, stack)
        session.close()
        wait_for(lambda: state_of(worker) in ("X", "Z"))


def test_what_a_worker_leaves_to_its_supervisor_is_refused_with_a_reason(server: Served) -> None:
    with RawPeer(server.address("zmq")) as peer:
        for nonsense, reason in (
            ({"type": "batch", "sequence": 1, "commands": []}, "does not follow"),
            ({"type": "batch", "sequence": 1 << 30, "commands": 7}, "commands"),
            ({"type": "unheard of"}, "unknown message type"),
        ):
            for _ in range(8):
                assert peer.batch(["fence"])[0]["type"] == "done"
            peer.send(nonsense)
            answer = peer.receive()[0]
            assert answer["type"] == "error" and reason in answer["error"]["message"]
        assert peer.batch(["fence"])[0]["type"] == "done"
