"""A session alone goes ahead, two share, and none waits for all of another's work."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tapml_rpc.client import connect
from tapml_rpc.supervisor.relay import Company
from tests.conftest import RequireDevice
from tests.rpc.libraries import ADD_ONE, BUSY, launch_often
from tests.rpc.peers import ServerProcess

ONE, OTHER = b"one", b"other"


@pytest.fixture(scope="module")
def supervisor(require_device: RequireDevice) -> Iterator[ServerProcess]:
    require_device("opencl")
    with ServerProcess() as process:
        yield process


def test_a_session_is_alone_until_another_has_worked_and_again_when_that_rests() -> None:
    company = Company()
    company.note(ONE, 10.0)
    assert not company.beside(ONE, 10.1) and company.beside(OTHER, 10.1)
    company.note(OTHER, 10.2)
    assert company.beside(ONE, 10.3)
    assert not company.beside(ONE, 20.0)
    company.note(OTHER, 20.0)
    company.leave(OTHER)
    assert not company.beside(ONE, 20.0)


def test_a_session_that_floods_the_device_does_not_starve_another(
    supervisor: ServerProcess,
) -> None:
    with connect(supervisor.address) as flooding, connect(supervisor.address) as small:
        launch_often(flooding, BUSY, 1)
        flooding.fence()
        launch_often(small, ADD_ONE, 1)
        small.fence()
        for _ in range(8):
            launch_often(flooding, BUSY, 130)
        started = time.monotonic()
        launch_often(small, ADD_ONE, 1)
        small.fence()
        waited = time.monotonic() - started
        flooding.fence()
        assert waited < (time.monotonic() - started) / 2
