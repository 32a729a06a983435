"""A tracker or a holder that dies while a lease is held: the device is rid of it, and goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from scripts.soak_runtime import served
from tapml_rpc.client import connect
from tapml_rpc.tracker.lease import Lease
from tapml_rpc.tracker.listing import list_devices
from tapml_rpc.tracker.request import request_device
from tapml_targets.errors import DeviceLostError, SetupError, TapmlError
from tests.conftest import RequireDevice
from tests.rpc.faults.ground import (
    BINDINGS,
    PATIENCE_SECONDS,
    ClientProcess,
    Served,
    nothing_left,
    operator_test,
    wait_for,
)
from tests.rpc.tracker.trackers import TrackerProcess, kept_addresses

NAME = "lent"
HOLDER = """
from tapml_rpc.tracker.request import request_device
lease = request_device(sys.argv[2], name="lent", exclusive=False, timeout=60)
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
    device: Served

    def lease(self, lost: list[TapmlError] | None = None) -> Lease:
        """Ask for it; shared, because the bookkeeper has a session there."""
        told = None if lost is None else lost.append
        return request_device(
            self.tracker.address,
            name=NAME,
            exclusive=False,
            timeout=PATIENCE_SECONDS,
            on_lost=told,
        )

    def registered(self) -> bool:
        """Whether the tracker has it, and lends it to nobody."""
        try:
            known = list_devices(self.tracker.address, timeout=PATIENCE_SECONDS)
        except SetupError:
            return False
        return [(each.name, each.leases) for each in known] == [(NAME, ())]


@pytest.fixture(scope="module")
def lent(require_device: RequireDevice) -> Iterator[Lent]:
    require_device("opencl")
    tracker = TrackerProcess(*kept_addresses())
    with served("opencl:0", "--tracker", tracker.address, "--name", NAME) as (server, books):
        lent = Lent(tracker, Served(server, books))
        wait_for(lent.registered)
        yield lent
        with lent.tracker:
            pass


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_tracker_that_is_gone_ends_its_leases_on_both_sides_and_gets_the_device_back(
    lent: Lent, how: str
) -> None:
    with nothing_left(lent.device.books):
        with ExitStack() as stack:
            lost: list[TapmlError] = []
            leases = [stack.enter_context(lent.lease(lost)) for _ in BINDINGS]
            sessions = [
                stack.enter_context(lent.device.connect(binding, lease=lease))
                for binding, lease in zip(BINDINGS, leases, strict=True)
            ]
            for session in sessions:
                operator_test(session)
            if how == "killed":
                lent.tracker.kill()
            else:
                lent.tracker.process.send_signal(signal.SIGSTOP)
            # The holders hear it of their leases, and the sessions from the device.
            wait_for(lambda: len(lost) == len(leases))
            for lease, session in zip(leases, sessions, strict=True):
                with pytest.raises(DeviceLostError):
                    lease.check()
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
                with lent.device.connect(binding, lease=lease.token) as session:
                    operator_test(session)
        wait_for(lent.registered)


def test_a_client_that_vanishes_with_a_lease_leaves_neither_lease_nor_memory(
    lent: Lent, binding: str
) -> None:
    address = lent.device.address(binding)
    with (
        nothing_left(lent.device.books),
        ClientProcess(address, HOLDER, lent.tracker.address) as client,
    ):
        assert client.line() == "holds"
        wait_for(lambda: lent.device.books.pong()["device_bytes"] >= 8 << 20)
        client.process.kill()
    wait_for(lent.registered)
    with pytest.raises(SetupError), connect(address, lease="nobody's", timeout=PATIENCE_SECONDS):
        pass
