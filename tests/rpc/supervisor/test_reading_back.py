"""How a supervisor has the reading back that it lent, where a long chunk may just have begun."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import cast

import pytest

from scripts.soak_runtime import served
from tapml_rpc.bounds import Bounds
from tapml_rpc.client import RemoteTensor
from tapml_rpc.link import Link
from tapml_rpc.supervisor.board import Board
from tapml_rpc.supervisor.last_commands import LastCommands
from tapml_rpc.supervisor.lent_reading import LentReading
from tapml_rpc.supervisor.ring import Ring, make_memory
from tapml_rpc.supervisor.shared_reading import MOST_CHUNK_BYTES, SharedReading
from tapml_rpc.supervisor.turns import Turns
from tapml_rpc.supervisor.uploads import Uploads
from tapml_rpc.supervisor.worker_process import WorkerProcess
from tapml_rpc.zmtp.peer import Peer
from tapml_rpc.zmtp.stream import Stream
from tapml_targets.errors import TapmlError
from tests.conftest import RequireDevice
from tests.rpc.faults.ground import PATIENCE_SECONDS, Served, exists, wait_for
from tests.rpc.libraries import NEVER_ENDS, add_one_library
from tests.rpc.supervisor.readings import Ends, batch, lend_to, message, unread

NO_BATCH = -1
NBYTES = 4 << 20


class FakePeer:
    """A client's connection, on which nothing has come."""

    closed = False
    reader = "supervisor"

    def lend_reading(self) -> bool:
        self.reader = "worker"
        return True

    def have_reading(self, received: bytes) -> None:
        self.reader = "supervisor"

    def has_more(self) -> bool:
        return False

    def close(self) -> None:
        self.closed, self.reader = True, "nobody"


class Lending:
    """A reading that is lent, and what the supervisor and the worker see of it."""

    def __init__(self) -> None:
        self.board = Board(Ring(make_memory(4096, "test")))
        pipe = SimpleNamespace(send=lambda *given, **named: None)
        worker = cast("WorkerProcess", SimpleNamespace(board=self.board, pipe=pipe))
        self.turns, self.peer = Turns(), FakePeer()
        self.uploads = Uploads(
            b"it", worker, Bounds(), self.turns, LastCommands(), lambda send: send()
        )
        self.reading = LentReading(
            b"it", b"life", worker, self.uploads, self.turns, lambda send: send()
        )
        self.lend()
        assert self.reading._shared is not None
        self.shared: SharedReading = self.reading._shared

    def lend(self) -> None:
        """Lend it."""
        self.uploads.short = 1 << 10
        self.reading.lend(cast("Peer", self.peer))
        assert self.reader() == "worker"

    def reader(self) -> str:
        """Who reads."""
        return self.peer.reader


@pytest.fixture
def lending() -> Iterator[Lending]:
    lending = Lending()
    yield lending
    lending.reading.close(NO_BATCH)


def test_a_chunk_that_begins_while_the_reading_is_asked_back_goes_on(
    lending: Lending, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, look, looks = lending.shared, lending.shared.enter, 0

    def enter(*, wait: bool = False) -> bool:
        # The worker has the lock at the first two looks, and lets go of it at a chunk's beginning.
        nonlocal looks
        looks += 1
        shared.halfway = looks >= 2
        return looks > 2 and look(wait=wait)

    monkeypatch.setattr(shared, "enter", enter)
    lending.board.shared = True
    for _ in range(3):
        lending.reading.check(NO_BATCH)
        assert lending.reading.refused and lending.reader() == "worker"
    assert looks > 2
    # Nobody waits for a chunk of another's.
    assert lending.turns.lend(b"another", lambda: None)
    monkeypatch.undo()
    shared.halfway = False
    lending.reading.check(NO_BATCH)
    assert lending.reader() == "supervisor"


def test_what_a_worker_says_of_an_earlier_time_ends_no_later_one(lending: Lending) -> None:
    lending.board.shared = True
    lending.reading.check(NO_BATCH)
    assert lending.reader() == "supervisor"
    lending.board.shared = False
    lending.lend()
    # The worker is in a long chunk by now; what it said before that is read here only now.
    lending.shared.halfway = True
    lending.reading.given_back(NO_BATCH)
    assert lending.reader() == "worker"
    lending.shared.halfway = False
    lending.shared.lent = 0
    lending.reading.given_back(NO_BATCH)
    assert lending.reader() == "supervisor"


def test_a_client_that_a_worker_lost_in_a_chunk_is_hung_up_on(lending: Lending) -> None:
    lending.shared.halfway = True
    lending.shared.lent = 0
    lending.reading.given_back(NO_BATCH)
    assert lending.reader() == "nobody"


def test_a_long_chunk_is_left_until_the_device_rests() -> None:
    ends, long = Ends(), MOST_CHUNK_BYTES + 1
    ends.board.opens_memory = True
    sent = message(batch(4, ["write", 7, 0, long, 0]), bytes(long))[:-9]
    ends.client.sendall(sent)
    assert not ends.reading.wait()
    assert ends.reading.next(3, busy=False, rested=False) is None
    # The supervisor may have all of it still.
    assert ends.reading.here() and ends.left() == sent
    assert ends.shared.taken_since(0) == (0, [])
    assert (ends.reading.wants_rest, ends.shared.halfway) == (True, False)
    assert ends.reading.next(3, busy=False, rested=True) is not None
    assert (ends.reading.wants_rest, ends.shared.halfway) == (False, True)
    ends.close()


def test_a_client_that_goes_behind_a_long_write_is_missed_while_the_device_works(
    require_device: RequireDevice,
) -> None:
    require_device("opencl")
    with ExitStack() as stack:
        server = Served(*stack.enter_context(served("opencl", "--kernel-deadline", "600")))
        session, worker = server.open("zmq")
        stack.enter_context(session)
        library = session.upload(add_one_library(NEVER_ENDS))
        x, y = (RemoteTensor(session.allocate(1024), 0, (256,), "float32") for _ in "xy")
        buffer = session.allocate(NBYTES)
        lend_to(worker, session)
        link = cast("Link", session._link)
        sent = link._unanswered.sequence
        session.call(library, "add_one", [x, y])
        assert link._unanswered.sequence > sent
        writing = threading.Thread(target=write, args=(link, buffer.handle))
        writing.start()
        stack.callback(writing.join, PATIENCE_SECONDS)
        assert isinstance(link._data, Stream)
        connection = link._data._socket
        # More than the connection holds.
        wait_for(lambda: unread(connection))
        connection.shutdown(socket.SHUT_RDWR)
        wait_for(lambda: not exists(worker))


def write(link: Link, handle: int) -> None:
    """Send a long write, as far as the server takes it."""
    with suppress(TapmlError):
        link.send([["write", handle, 0, NBYTES, 0]], bytes(NBYTES))
