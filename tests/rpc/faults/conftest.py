"""Real servers that accidents happen to, on a real OpenCL device."""

from __future__ import annotations

import pytest

from tests.conftest import RequireDevice
from tests.rpc.faults.ground import BINDINGS
from tests.rpc.faults.servers import lasting_servers, server

__all__ = ["lasting_servers", "server"]


@pytest.fixture(params=BINDINGS)
def binding(request: pytest.FixtureRequest) -> str:
    """One meaning, two bindings."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def served_device(require_device: RequireDevice) -> str:
    """The device that they serve."""
    require_device("opencl")
    return "opencl:0"
