"""Two devices at once: each does its own work, and what befalls one is nothing to the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from scripts.soak_runtime import served
from tapml_targets.errors import DeviceRestartedError
from tests.conftest import RequireDevice
from tests.rpc.faults.ground import Served, call, nothing_left, operator_test
from tests.rpc.libraries import WRITES_TO_NOWHERE

ROUNDS = 20


@pytest.fixture(scope="module")
def servers(require_device: RequireDevice) -> Iterator[list[Served]]:
    """A server for each of two drivers of this machine."""
    found = [require_device("opencl", vendor=vendor)[0] for vendor in ("Portable", "Intel")]
    with ExitStack() as stack:
        yield [Served(*stack.enter_context(served(f"opencl:{device.index}"))) for device in found]


def test_two_devices_work_at_once_without_cross_talk(servers: list[Served], binding: str) -> None:
    with ExitStack() as stack:
        for server in servers:
            stack.enter_context(nothing_left(server.books))
        sessions = [stack.enter_context(server.connect(binding)) for server in servers]
        names = [session.device.vendor_platform for session in sessions]
        assert len(set(names)) == 2
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for turn in range(ROUNDS):
                    # The same handles, the same Library, other numbers.
                    operator_test(sessions[number], 1000.0 * number + turn)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        call(sessions[0], 1, WRITES_TO_NOWHERE)
        with pytest.raises(DeviceRestartedError):
            sessions[0].fence()
        operator_test(sessions[1], 5)
