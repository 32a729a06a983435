"""One OpenCL device for the tests that bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tapml.reduce.device import ReopeningDevice
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tests.conftest import RequireDevice


@pytest.fixture(scope="session")
def open_session(require_device: RequireDevice) -> Callable[[], Session]:
    """Opens the best OpenCL device."""
    best = require_device("opencl")[0]
    return lambda: open_local(best)


@pytest.fixture(scope="session")
def device(open_session: Callable[[], Session]) -> Iterator[ReopeningDevice]:
    """The same device, for tests that need no session of their own."""
    with ReopeningDevice(open_session) as opened:
        yield opened
