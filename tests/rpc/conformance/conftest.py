"""One ``tapml rpc serve`` for these tests, and clients over each of its bindings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

import pytest

from tests.conftest import RequireDevice
from tests.rpc.conformance.clients import Client
from tests.rpc.peers import ServerProcess


class Connect(Protocol):
    """Opens a session over the binding that is being tested."""

    def __call__(self, **hello: Any) -> Client: ...


@pytest.fixture(scope="package")
def served(require_device: RequireDevice) -> Iterator[ServerProcess]:
    require_device("opencl")
    serve = "tapml_rpc.supervisor.serve"
    with ServerProcess("--websocket", "ws://127.0.0.1:0", module=serve) as process:
        yield process


@pytest.fixture(scope="package", params=["zmq", "websocket"])
def binding(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="package")
def connect(served: ServerProcess, binding: str) -> Connect:
    return partial(Client, served.line, binding)


@pytest.fixture(scope="package")
def shared(connect: Connect) -> Iterator[Client]:
    """A session whose hello has what nobody knows: it is not looked at."""
    with connect(versions=[7, 1], features=["later"], later={"a": [1, None]}) as client:
        yield client


@pytest.fixture
def client(shared: Client) -> Client:
    """The shared session with a sound stream and its handle 1 free."""
    answer, _ = shared.batch(["reset"], ["free", 1])
    assert "error" not in answer
    return shared
