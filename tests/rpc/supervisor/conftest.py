"""A real server whose sessions come to harm; on the processor, unless a module says where else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scripts.soak_runtime import served
from tests.rpc.faults.ground import Served, nothing_left


@pytest.fixture(scope="module")
def served_device() -> str:
    """The device that it serves."""
    return "cpu"


@pytest.fixture(scope="module")
def lasting_server(served_device: str) -> Iterator[Served]:
    """A server that all tests of a module share."""
    with served(served_device) as (server, books):
        yield Served(server, books)
        assert "Traceback" not in server.log(), server.log()


@pytest.fixture
def server(lasting_server: Served) -> Iterator[Served]:
    """The server; whatever happens to its sessions, nothing is left of them."""
    with nothing_left(lasting_server.books):
        yield lasting_server
