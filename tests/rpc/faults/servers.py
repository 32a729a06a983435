"""Servers that the tests of a folder share, one for each device; a test leaves nothing there.

What a folder's `conftest.py` takes from here needs its `served_device`: where its server serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

import pytest

from scripts.soak_runtime import served
from tests.rpc.faults.ground import Served, nothing_left


@contextmanager
def sound(device: str) -> Iterator[Served]:
    """A server whose sessions come to harm, and which does not."""
    with served(device) as (server, books):
        yield Served(server, books)
        assert "Traceback" not in server.log(), server.log()


@pytest.fixture(scope="session")
def lasting_servers() -> Iterator[Callable[[str], Served]]:
    """Gives the server of a device, begun for who asks first."""
    with ExitStack() as stack:
        yield cache(lambda device: stack.enter_context(sound(device)))


@pytest.fixture
def server(served_device: str, lasting_servers: Callable[[str], Served]) -> Iterator[Served]:
    """The server; whatever happens to its sessions, nothing is left of them."""
    lasting = lasting_servers(served_device)
    with nothing_left(lasting.books):
        yield lasting
