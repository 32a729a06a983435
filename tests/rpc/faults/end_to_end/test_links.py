"""A slow, lossy or broken link: what a test costs on it, and who notices its end.

Real TCP over packets that a process of ours takes from end to end, where the machine permits that,
and over copied streams where it does not: tests/rpc/network.py says how. Both bindings of one
server are reached over one link.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pytest

from scripts.soak_runtime import served
from scripts.wire_fuzz.kernel import operator_test as checked_operator_test
from scripts.wire_fuzz.kernel import packed_library
from tapml_rpc.client import Session, connect
from tapml_targets.errors import DeviceLostError
from tests.conftest import RequireDevice
from tests.rpc.faults.ground import (
    BINDINGS,
    PATIENCE_SECONDS,
    Served,
    nothing_left,
    operator_test,
    wait_for,
)
from tests.rpc.network import ShapedLink, may_join_namespaces, shaped_link

ROUND_TRIP_SECONDS = 0.05
LOSS = 0.01
BYTES_A_SECOND = 20_000_000 / 8
PAYLOAD_BYTES = 512 << 10


@dataclass
class Far:
    """A server at the other end of a link."""

    link: ShapedLink
    server: Served

    def connect(self, binding: str) -> Session:
        """A session across the link."""
        address = self.link.reach(self.server.address(binding), self.server.books.data_port)
        with self.link.client_end():
            return connect(address, timeout=PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def far(require_device: RequireDevice) -> Iterator[Far]:
    """50 ms there and back, one packet of a hundred lost, 20 Mbit/s."""
    require_device("opencl")
    kind = "packets" if may_join_namespaces() else "streams"
    print(f"the link carries {kind}")
    shape = {"delay_ms": 500 * ROUND_TRIP_SECONDS, "loss": LOSS, "rate": BYTES_A_SECOND}
    with shaped_link(kind=kind, **shape) as link, ExitStack() as stack:
        with link.server_end():
            found = served("opencl:0", "--silence", "4", prefix=link.server_prefix)
            server = Served(*stack.enter_context(found))
        yield Far(link, server)


def assert_one_round_trip(session: Session) -> None:
    """An operator test takes less than two round trips, the machine's own time included."""
    library = session.upload(packed_library())

    def seconds() -> float:
        started = time.perf_counter()
        checked_operator_test(session, library, 1, record=False)
        return time.perf_counter() - started

    # A packet may be lost, or the machine busy, in some of them.
    wait_for(lambda: ROUND_TRIP_SECONDS < seconds() < 2 * ROUND_TRIP_SECONDS)


def test_an_operator_test_costs_one_round_trip(far: Far, binding: str) -> None:
    with nothing_left(far.server.books), far.connect(binding) as session:
        assert_one_round_trip(session)


def test_it_does_over_copied_streams_too(server: Served, binding: str) -> None:
    with shaped_link(delay_ms=500 * ROUND_TRIP_SECONDS, kind="streams") as link:
        address = link.reach(server.address(binding), server.books.data_port)
        with connect(address, timeout=PATIENCE_SECONDS) as session:
            assert_one_round_trip(session)


def test_payloads_arrive_whole_over_a_slow_link_that_loses_packets(far: Far, binding: str) -> None:
    data = np.random.default_rng(7).integers(0, 256, PAYLOAD_BYTES, np.uint8)
    with nothing_left(far.server.books), far.connect(binding) as session:
        buffer = session.allocate(data.nbytes)
        started = time.perf_counter()
        session.write(buffer, data)
        found = np.frombuffer(session.read(buffer), np.uint8)
        taken = time.perf_counter() - started
        assert np.array_equal(found, data)
    # Otherwise the link was not what this test is about.
    assert taken > 1.5 * PAYLOAD_BYTES / BYTES_A_SECOND


def test_a_link_that_is_cut_for_a_second_costs_time_and_nothing_else(far: Far) -> None:
    with nothing_left(far.server.books), ExitStack() as stack:
        sessions = [stack.enter_context(far.connect(binding)) for binding in BINDINGS]
        for session in sessions:
            operator_test(session)
        far.link.cut()
        started = time.perf_counter()
        threading.Timer(1.0, far.link.heal).start()
        operator_test(sessions[0])
        assert time.perf_counter() - started > 0.9
        operator_test(sessions[1])


def test_a_link_that_stays_cut_ends_its_sessions_on_both_sides(far: Far) -> None:
    with nothing_left(far.server.books):
        sessions = [far.connect(binding) for binding in BINDINGS]
        for session in sessions:
            session.fill(session.allocate(1 << 20), b"\x01")
            session.fence()
        far.link.cut()
        for session in sessions:
            with pytest.raises(DeviceLostError, match="has not answered"):
                session.fence()
            session.close()
        wait_for(lambda: far.server.books.pong()["sessions"] == 1)
        far.link.heal()
    with far.connect("zmq") as after:
        operator_test(after)
