"""Connections that are hung up on slowly, so that their peers hear why."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from selectors import DefaultSelector

import pytest

from tapml_rpc.zmtp import parting
from tapml_rpc.zmtp.parting import MOST_PARTINGS, PARTING_SECONDS, Partings

PATIENCE = 60.0


class Ends:
    """Connections that part, and their other ends."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.selector = DefaultSelector()
        self.partings = Partings(self.selector)

    def part(self) -> socket.socket:
        """The other end of one more, which was told why."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            other = self.stack.enter_context(socket.create_connection(listener.getsockname()))
            ours = listener.accept()[0]
        other.settimeout(PATIENCE)
        ours.setblocking(False)
        ours.sendall(b"why")
        ours.shutdown(socket.SHUT_WR)
        self.partings.add(ours)
        return other

    def serve(self) -> None:
        """Do what there is to do."""
        for key, events in self.selector.select(0.01):
            key.data(events)

    def count(self) -> int:
        """Those that have not been hung up on."""
        return len(self.selector.get_map())


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    with ends.stack:
        yield ends
        ends.partings.close()
    ends.selector.close()


def test_who_sends_much_more_hears_why_and_may_then_hang_up(ends: Ends) -> None:
    other = ends.part()
    other.setblocking(False)
    sent = 0
    while sent < 64 << 20:
        try:
            sent += other.send(bytes(1 << 20))
        except BlockingIOError:
            ends.serve()
    other.settimeout(PATIENCE)
    # A connection that was reset would have forgotten it.
    assert other.recv(4) == b"why"
    assert other.recv(4) == b""
    assert ends.count() == 1
    other.close()
    deadline = time.monotonic() + PATIENCE
    while ends.count():
        assert time.monotonic() < deadline
        ends.serve()


def test_who_never_hangs_up_is_hung_up_on(ends: Ends) -> None:
    other = ends.part()
    now = time.monotonic()
    ends.partings.check(now + PARTING_SECONDS - 1)
    assert ends.count() == 1
    ends.partings.check(now + PARTING_SECONDS + 1)
    assert not ends.count()
    assert other.recv(4) + other.recv(4) == b"why"
    with pytest.raises(OSError):
        for _ in range(100):
            other.sendall(b"on and on")
            time.sleep(0.01)


def test_who_sends_without_end_is_hung_up_on_however_fast(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parting, "MOST_DISCARDED_BYTES", 1 << 20)
    other = ends.part()
    other.setblocking(False)
    deadline = time.monotonic() + PATIENCE
    with pytest.raises(ConnectionError):
        while True:
            assert time.monotonic() < deadline
            try:
                other.send(bytes(1 << 20))
            except BlockingIOError:
                ends.serve()
    assert not ends.count()


def test_the_oldest_makes_room(ends: Ends) -> None:
    others = [ends.part() for _ in range(MOST_PARTINGS + 1)]
    assert ends.count() == MOST_PARTINGS
    kept = {key.fileobj.getpeername() for key in ends.selector.get_map().values()}  # type: ignore[union-attr]
    assert kept == {other.getsockname() for other in others[1:]}


def test_who_made_room_in_the_round_in_which_it_was_to_be_read_is_left_alone(ends: Ends) -> None:
    oldest = ends.part()
    oldest.sendall(b"more")
    [(key, events)] = ends.selector.select(PATIENCE)
    kept = [ends.part() for _ in range(MOST_PARTINGS)]
    key.data(events)
    assert ends.count() == len(kept)
