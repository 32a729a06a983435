"""Long writes that a worker receives into the device's memory, and what may happen halfway."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import cast

import numpy as np
import pytest

from tapml_rpc import wire
from tapml_rpc.client import Session
from tapml_rpc.interpreter import ClientGoneError
from tapml_rpc.link import Link
from tapml_rpc.supervisor.arriving_chunk import ArrivingChunk, is_one_write
from tapml_rpc.supervisor.shared_reading import MOST_CHUNK_BYTES, Taken
from tapml_rpc.zmtp.stream import Stream
from tapml_targets.errors import DeviceRestartedError, TapmlError
from tests.conftest import RequireDevice
from tests.rpc.faults.ground import (
    PATIENCE_SECONDS,
    Served,
    exists,
    wait_for,
)
from tests.rpc.supervisor.readings import Ends, batch, lent, message, reads, unread

LONG = MOST_CHUNK_BYTES + 1000
WRITE = ["write", 7, 0, LONG, 0]
PAYLOAD = bytes(range(250)) * (LONG // 250 + 1)


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    ends.board.opens_memory = True
    yield ends
    ends.close()


def given(size: int) -> bytearray:
    return bytearray(b"?" * size)


def arriving(ends: Ends, sent: bytes) -> ArrivingChunk:
    """The chunk of a long write whose first bytes have come."""
    ends.client.sendall(sent)
    found = ends.next()
    assert found is not None and isinstance(found[1].arriving, ArrivingChunk)
    return found[1].arriving


@pytest.mark.parametrize("there", [100, LONG - 1, LONG])
def test_a_long_write_is_taken_before_all_of_it_has_come(ends: Ends, there: int) -> None:
    packed, fence = batch(4, WRITE), message(batch(5, ["fence"]))
    whole = message(packed, PAYLOAD[:LONG])
    chunk = arriving(ends, whole[: len(whole) - LONG + there])
    assert ends.shared.halfway == (there < LONG)
    assert ends.shared.taken_since(0) == (1, [Taken(4, LONG, packed)])
    ends.client.sendall(whole[len(whole) - LONG + there :] + fence)
    memory = given(LONG)
    chunk.receive_into(memoryview(memory))
    assert memory == PAYLOAD[:LONG] and not ends.shared.halfway
    chunk.finish()
    found = ends.next(4)
    assert found is not None and found[0]["sequence"] == 5


def test_what_nobody_wants_is_received_and_forgotten(ends: Ends) -> None:
    whole = message(batch(4, WRITE), PAYLOAD[:LONG])
    chunk = arriving(ends, whole[:-500])
    ends.client.sendall(whole[-500:] + message(batch(5, ["fence"])))
    chunk.finish()
    assert not ends.shared.halfway
    assert ends.next(4) is not None


def test_what_comes_after_a_fault_over_half_a_chunk_is_not_lost(ends: Ends) -> None:
    whole = message(batch(4, WRITE), PAYLOAD[:LONG])
    chunk = arriving(ends, whole[:-500])
    ends.client.sendall(whole[-500:] + message(batch(5, ["fence"])))
    receive, received = chunk._receive, given(LONG)

    def once(memory: memoryview) -> int:
        chunk._receive = no_more
        return receive(memory[:400])

    def no_more(memory: memoryview) -> int:
        raise MemoryError

    chunk._receive = once
    with pytest.raises(MemoryError):
        chunk.receive_into(memoryview(received))
    chunk._receive = receive
    chunk.finish()
    found = ends.next(4)
    assert found is not None and found[0]["sequence"] == 5


def test_the_end_of_the_connection_or_of_the_session_ends_the_waiting(ends: Ends) -> None:
    chunk = arriving(ends, message(batch(4, WRITE), PAYLOAD[:LONG])[:-1])
    ends.supervisor.close()
    with pytest.raises(ClientGoneError, match="session"):
        chunk.receive_into(memoryview(given(LONG)))
    other = Ends()
    other.board.opens_memory = True
    chunk = arriving(other, message(batch(4, WRITE), PAYLOAD[:LONG])[:-1])
    other.client.close()
    with pytest.raises(ClientGoneError, match="connection"):
        chunk.finish()
    # Whoever has the reading back knows that bytes are missing.
    other.reading.give_up()
    assert not other.reading.here() and other.shared.halfway
    other.close()


@pytest.mark.parametrize(
    "commands",
    [
        [["fence"]],
        [["write", 7, 0, LONG - 1, 0]],
        [["write", 7, 0, LONG, 1]],
        [["write", 7, 0, LONG, False]],
        [["write", 7, 0, LONG, 0.0]],
        [["write", 7, 0, LONG]],
        [["upload", 7, 0, LONG, 0]],
        [WRITE, ["fence"]],
        [],
        [7],
    ],
)
def test_another_batch_with_a_long_chunk_is_the_supervisors(ends: Ends, commands: object) -> None:
    assert isinstance(commands, list)
    assert not is_one_write(commands, LONG)
    sent = message(batch(4, *commands), PAYLOAD[:LONG])[: -LONG + 10]
    ends.client.sendall(sent)
    assert ends.next() is None
    assert not ends.reading.here() and ends.left() == sent and not ends.shared.halfway


def test_a_chunk_over_the_bound_and_one_for_a_closed_memory_are_the_supervisors() -> None:
    for opens, size in ((True, wire.MAX_CHUNK_BYTES + 1), (False, LONG)):
        ends = Ends()
        ends.board.opens_memory = opens
        sent = message(batch(4, ["write", 7, 0, size, 0]), bytes(size))[:-size]
        ends.client.sendall(sent)
        assert ends.next() is None
        assert not ends.reading.here() and ends.left() == sent
        ends.close()


@pytest.fixture(scope="module", params=["cpu", "opencl"])
def served_device(request: pytest.FixtureRequest, require_device: RequireDevice) -> str:
    name: str = request.param
    if name != "cpu":
        require_device(name)
    return name


def goes_on(session: Session, value: int = 7) -> None:
    """It does what it is asked."""
    one, other = session.allocate(5000), session.allocate(5000)
    session.fill(one, bytes([value]))
    session.copy(one, other)
    assert session.read(other) == bytes([value] * 5000)
    session.free(one)
    session.free(other)


def test_long_writes_land_where_they_belong_between_others(server: Served) -> None:
    random = np.random.default_rng(5)
    data = random.integers(0, 256, 5 << 20, np.uint8)
    with ExitStack() as stack:
        session, worker = lent(server, stack)
        buffer = session.allocate(data.nbytes)
        for start in (4097, 1, 0):
            # The device may still be filling what is written next.
            session.fill(buffer, b"\3")
            session.write(buffer, data[start:], start)
            assert (
                session.read(buffer, start + 9) == bytes([3] * start) + data[start:][:9].tobytes()
            )
        goes_on(session)
        assert session.read(buffer) == data.data
        wait_for(lambda: reads(worker))


def test_a_write_that_is_refused_is_told_and_the_next_message_is_found(server: Served) -> None:
    piece = np.arange(1 << 18, dtype=np.uint32)
    with ExitStack() as stack:
        session, _ = lent(server, stack)
        buffer, nbytes = session.allocate(piece.nbytes), piece.nbytes
        session.fence()
        for handle, offset, reason in (
            (buffer.handle, 1, "lie outside buffer"),
            (12345, 0, "12345"),
            (buffer.handle, -1, "byte offset"),
            ("seven", 0, "handle"),
        ):
            # On a poisoned stream nobody even looks where the second one would belong.
            for _ in range(2):
                ticket = session._link.send([["write", handle, offset, nbytes, 0]], bytes(nbytes))
                session._link.wait(ticket)
                assert reason in str(ticket.failure)
            session.reset()
        session.write(buffer, piece)
        assert session.read(buffer) == piece.data.cast("B")


class SlowSocket:
    """A client's socket that sends `nbytes` more, and the rest once it may."""

    def __init__(self, real: socket.socket, nbytes: int) -> None:
        self._real = real
        self._left = nbytes
        self.stopped = threading.Event()
        self.go_on = threading.Event()

    def sendmsg(self, parts: list[bytes | memoryview]) -> int:
        if self.go_on.is_set():
            return self._real.sendmsg(parts)
        if not self._left:
            self.stopped.set()
            self.go_on.wait(0.01)
            raise BlockingIOError
        sent = self._real.sendmsg([parts[0][: self._left]])
        self._left -= sent
        return sent

    def hang_up(self) -> None:
        """Vanish, as a client does that is killed."""
        self._real.shutdown(socket.SHUT_RDWR)

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


class HalfSent:
    """A write that goes in two pieces, of the first of which the worker has half; its session."""

    NBYTES = 1 << 20
    PIECE_BYTES = NBYTES // 2

    def __init__(self, server: Served, stack: ExitStack) -> None:
        self.session, self.worker = lent(server, stack)
        self.buffer = self.session.allocate(self.NBYTES)
        self.session.fill(self.buffer, b"\0")
        self.session.fence()
        stream = cast("Link", self.session._link)._data
        assert isinstance(stream, Stream)
        self.slow = SlowSocket(stream._socket, self.PIECE_BYTES // 2)
        stream._socket = cast("socket.socket", self.slow)
        self.failure: TapmlError | None = None
        self._thread = threading.Thread(target=self._write)
        self._thread.start()
        stack.callback(self.end)
        assert self.slow.stopped.wait(PATIENCE_SECONDS)
        # All that was sent has been taken off the connection.
        wait_for(lambda: not unread(stream._socket) and reads(self.worker))

    def _write(self) -> None:
        try:
            self.session.write(self.buffer, b"\1" * self.NBYTES)
            self.session.fence()
        except TapmlError as error:
            self.failure = error

    def end(self) -> None:
        """Send the rest, and wait until that has its answer."""
        self.slow.go_on.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()


def test_others_have_their_turns_while_a_payload_is_slow_to_come(server: Served) -> None:
    with ExitStack() as stack:
        half = HalfSent(server, stack)
        for binding in ("zmq", "websocket"):
            other = stack.enter_context(server.connect(binding))
            for number in range(3):
                goes_on(other, number)
        # Longer than a worker may stand still that waits for nobody.
        time.sleep(3.5)
        half.end()
        assert half.failure is None
        assert half.session.read(half.buffer) == b"\1" * half.NBYTES
        goes_on(half.session)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_harmed_over_half_a_payload_is_told_of(
    server: Served, how: signal.Signals
) -> None:
    with ExitStack() as stack:
        half = HalfSent(server, stack)
        os.kill(half.worker, how)
        wait_for(lambda: not exists(half.worker))
        half.end()
        assert isinstance(half.failure, DeviceRestartedError)
        expected = "signal SIGKILL" if how == signal.SIGKILL else "stood still"
        assert expected in str(half.failure)
        received = str(half.failure).partition("last commands sent:")[0]
        assert f"write({half.buffer.handle}, 0, {half.PIECE_BYTES}, 0)" in received


def test_a_client_that_vanishes_over_half_a_payload_leaves_nothing(server: Served) -> None:
    with ExitStack() as stack:
        half = HalfSent(server, stack)
        half.slow.hang_up()
        wait_for(lambda: not exists(half.worker))
        half.end()
        assert isinstance(half.failure, TapmlError)
