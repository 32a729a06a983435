"""A slow, lossy or broken link: what a test costs on it, and who notices its end when.

Real TCP over packets that a process of ours takes from end to end, where the machine permits that,
and over copied streams where it does not: tests/rpc/network.py says how, and each test which.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from scripts.wire_fuzz.bindings import SERVE_OPTIONS, address_of
from scripts.wire_fuzz.server import ServerUnderTest
from tapml_rpc.client import RemoteLibrary, RemoteTensor, Session, connect
from tapml_rpc.watch import SILENCE_SECONDS
from tapml_targets.errors import DeviceLostError
from tests.conftest import RequireDevice
from tests.rpc.libraries import add_one_library
from tests.rpc.network import ShapedLink, free_ports, may_join_namespaces, shaped_link
from tests.rpc.peers import RawPeer

BINDINGS = ["zmq", "websocket"]
SERVER_SILENCE_SECONDS = 3.0
PAYLOAD_BYTES = 4 << 20
MEGABIT = 1_000_000 / 8

pytestmark = pytest.mark.parametrize("binding", BINDINGS)


@pytest.fixture
def kind(require_device: RequireDevice) -> str:
    """How the link is made: by packets where this process has the rights, else by streams."""
    require_device("opencl")
    kind = "packets" if may_join_namespaces() else "streams"
    print(f"the link carries {kind}")
    return kind


@dataclass
class Far:
    """A session whose server is at the other end of a link.

    Attributes
    ----------
    address
        Where the server listens at its own end.
    """

    link: ShapedLink
    session: Session
    address: str


@contextmanager
def far_session(binding: str, kind: str, **shape: float) -> Iterator[Far]:
    """A server at a link's far end and a session across it."""
    port, data_port = free_ports(2)
    options = (
        *SERVE_OPTIONS[binding],
        *("--bind", f"tcp://127.0.0.1:{port}", "--data-port", str(data_port)),
        *("--silence", str(SERVER_SILENCE_SECONDS)),
    )
    with (
        shaped_link(kind=kind, **shape) as link,
        ServerUnderTest("opencl:0", *options, prefix=link.server_prefix) as server,
    ):
        address = address_of(binding, server.line)
        with link.client_end():
            session = connect(link.reach(address, data_port))
        try:
            yield Far(link, session, server.line["address"])
        finally:
            session.close()


def operator_test(session: Session, library: RemoteLibrary, given: npt.NDArray[np.float32]) -> None:
    """One test as carving replays it: allocate, write, call, read, free."""
    with session.batch() as batch:
        x, y = (RemoteTensor(batch.allocate(given.nbytes), 0, (1024,), "float32") for _ in "xy")
        batch.write(x.buffer, given)
        batch.call(library, "add_one", [x, y])
        read = batch.read(y.buffer)
        batch.free(x.buffer)
        batch.free(y.buffer)
    assert np.array_equal(np.frombuffer(read.result(), np.float32), given + 1)


def test_an_operator_test_costs_one_round_trip(kind: str, binding: str) -> None:
    assert_one_round_trip(kind, binding)


def test_it_does_over_copied_streams_too(require_device: RequireDevice, binding: str) -> None:
    require_device("opencl")
    assert_one_round_trip("streams", binding)


def assert_one_round_trip(kind: str, binding: str) -> None:
    """On a link whose round trip takes 50 ms."""
    given = np.arange(1024, dtype=np.float32)
    round_trip, compute = 0.05, 0.02
    with far_session(binding, kind, delay_ms=1000 * round_trip / 2) as far:
        session = far.session
        library = session.upload(add_one_library())
        operator_test(session, library, given)
        times = []
        for _ in range(7):
            started = time.perf_counter()
            operator_test(session, library, given)
            times.append(time.perf_counter() - started)
    assert round_trip < min(times) < 1.6 * round_trip + compute, times


def test_payloads_arrive_whole_over_a_slow_link_that_loses_packets(kind: str, binding: str) -> None:
    data = np.random.default_rng(7).integers(0, 256, PAYLOAD_BYTES, np.uint8)
    rate = 20 * MEGABIT
    with far_session(binding, kind, delay_ms=2, loss=0.01, rate=rate) as far:
        session = far.session
        buffer = session.allocate(data.nbytes)
        started = time.perf_counter()
        session.write(buffer, data)
        found = np.frombuffer(session.read(buffer), np.uint8)
        taken = time.perf_counter() - started
    assert np.array_equal(found, data)
    # Otherwise the link was not what this test is about.
    assert taken > 1.5 * PAYLOAD_BYTES / rate


def test_a_link_that_stays_cut_ends_the_session_on_both_sides(kind: str, binding: str) -> None:
    with far_session(binding, kind) as far:
        session = far.session
        session.fill(session.allocate(1 << 20), b"\x01")
        session.fence()
        far.link.cut()
        started = time.monotonic()
        with pytest.raises(DeviceLostError, match="has not answered"):
            session.fence()
        assert time.monotonic() - started < SILENCE_SECONDS + 30
        with far.link.server_end(), RawPeer(far.address) as other:
            other.wait_for(device_bytes=0, sessions=1)


def test_a_link_that_is_cut_for_a_second_costs_a_second(kind: str, binding: str) -> None:
    given = np.arange(1024, dtype=np.float32)
    with far_session(binding, kind) as far:
        session, link = far.session, far.link
        library = session.upload(add_one_library())
        operator_test(session, library, given)
        link.cut()
        healing = threading.Timer(1.0, link.heal)
        healing.start()
        started = time.perf_counter()
        operator_test(session, library, given)
        assert time.perf_counter() - started > 0.9
        healing.join()
        operator_test(session, library, given)
