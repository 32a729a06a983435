"""A tracker or a holder that dies while a lease is held: the device is rid of it, and goes on."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from scripts.wire_fuzz.bindings import SERVE_OPTIONS, address_of
from scripts.wire_fuzz.server import ServerUnderTest
from tapml.devices.listing import list_devices
from tapml_rpc.client import Session, connect
from tapml_rpc.tracker.lease import Lease
from tapml_rpc.tracker.request import request_device
from tapml_targets.errors import DeviceLostError, SetupError, TapmlError
from tests.conftest import RequireDevice
from tests.rpc.faults.ground import (
    BINDINGS,
    PATIENCE_SECONDS,
    ClientProcess,
    operator_test,
    wait_for,
)
from tests.rpc.tracker.trackers import TrackerProcess, kept_addresses

NAME = "lent"
HOLDER = """
from tapml_rpc.tracker.request import request_device
lease = request_device(sys.argv[2], name="lent", timeout=60)
held = connect(address, lease=lease.token, timeout=60)
kept = held.allocate(8 << 20)
held.fence()
print("holds", flush=True)
hang(held)
held.fence()
"""


@dataclass
class Lent:
    """A real device that a tracker lends, and the tracker, which may be replaced."""

    tracker: TrackerProcess
    server: ServerUnderTest

    def lease(self, lost: list[TapmlError] | None = None) -> Lease:
        """Ask for it."""
        told = None if lost is None else lost.append
        return request_device(
            self.tracker.address, name=NAME, timeout=PATIENCE_SECONDS, on_lost=told
        )

    def address(self, binding: str) -> str:
        """Where the device listens in this binding."""
        return address_of(binding, self.server.line)

    def connect(self, binding: str, lease: Lease | str) -> Session:
        """A session under a lease."""
        return connect(self.address(binding), timeout=PATIENCE_SECONDS, lease=lease)

    def registered(self) -> bool:
        """Whether the tracker has it, and lends it to nobody."""
        try:
            known = list_devices(self.tracker.address, timeout=PATIENCE_SECONDS)
        except SetupError:
            return False
        return [(each.name, each.leases) for each in known] == [(NAME, ())]

    @contextmanager
    def nothing_left(self) -> Iterator[None]:
        """What the server has soon after the block is what it had before: a worker that waits."""
        before = self._at_rest()
        yield
        # What an earlier session left may have counted in `before`, on a machine with other work.
        wait_for(lambda: self._at_rest() <= before)

    def _at_rest(self) -> tuple[int, int]:
        """Processes and descriptors, once they stay: the worker that waits has begun."""
        found = [(0, 0)]

        def rests() -> bool:
            time.sleep(0.3)
            weight = self.server.weigh()
            found.append((weight.processes, weight.descriptors))
            return found[-1] == found[-2] and weight.processes == 3

        wait_for(rests)
        return found[-1]


@pytest.fixture(scope="module")
def lent(require_device: RequireDevice) -> Iterator[Lent]:
    require_device("opencl")
    tracker = TrackerProcess(*kept_addresses())
    options = (*SERVE_OPTIONS["websocket"], "--tracker", tracker.address, "--name", NAME)
    with ServerUnderTest("opencl:0", *options) as server:
        lent = Lent(tracker, server)
        wait_for(lent.registered)
        with lent.lease() as lease, lent.connect("zmq", lease) as session:
            operator_test(session)
        yield lent
        with lent.tracker:
            pass


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_tracker_that_is_gone_ends_its_leases_on_both_sides_and_gets_the_device_back(
    lent: Lent, how: str
) -> None:
    with lent.nothing_left():
        with ExitStack() as stack:
            lost: list[TapmlError] = []
            lease = stack.enter_context(lent.lease(lost))
            sessions = [stack.enter_context(lent.connect(binding, lease)) for binding in BINDINGS]
            for session in sessions:
                operator_test(session)
            if how == "killed":
                lent.tracker.kill()
            else:
                lent.tracker.process.send_signal(signal.SIGSTOP)
            # The holder hears it of the lease, and the sessions from the device.
            wait_for(lambda: len(lost) == 1)
            with pytest.raises(DeviceLostError):
                lease.check()
            for session in sessions:
                with pytest.raises(DeviceLostError, match="over: the tracker at"):
                    while True:
                        operator_test(session)
        if how == "killed":
            with lent.tracker as dead:
                lent.tracker = dead.again()
        else:
            lent.tracker.process.send_signal(signal.SIGCONT)
        wait_for(lent.registered)
        with lent.lease() as lease:
            for binding in BINDINGS:
                with lent.connect(binding, lease.token) as session:
                    operator_test(session)
        wait_for(lent.registered)


def test_a_client_that_vanishes_with_a_lease_leaves_neither_lease_nor_memory(
    lent: Lent, binding: str
) -> None:
    address = lent.address(binding)
    with (
        lent.nothing_left(),
        ClientProcess(address, HOLDER, lent.tracker.address) as client,
    ):
        assert client.line() == "holds"
        client.process.kill()
    wait_for(lent.registered)
    with pytest.raises(SetupError), connect(address, lease="nobody's", timeout=PATIENCE_SECONDS):
        pass
