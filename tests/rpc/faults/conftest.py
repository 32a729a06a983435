"""Real servers that accidents happen to, on a real OpenCL device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scripts.soak_runtime import served
from tests.conftest import RequireDevice
from tests.rpc.faults.ground import BINDINGS, Served, nothing_left


@pytest.fixture(params=BINDINGS)
def binding(request: pytest.FixtureRequest) -> str:
    """One meaning, two bindings."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def lasting_server(require_device: RequireDevice) -> Iterator[Served]:
    """A server whose sessions come to harm, and which does not; all modules share it."""
    require_device("opencl")
    with served("opencl:0") as (server, books):
        yield Served(server, books)
        assert "Traceback" not in server.log(), server.log()


@pytest.fixture
def server(lasting_server: Served) -> Iterator[Served]:
    """The server; whatever happens to its sessions, nothing is left of them."""
    with nothing_left(lasting_server.books):
        yield lasting_server
