"""Servers for these tests, and clients over each binding."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

import pytest

from tapml_rpc.security.allow_list import admit
from tapml_rpc.security.keys import make_pair, write_pair
from tests.conftest import RequireDevice
from tests.rpc.conformance.clients import Client, Keys
from tests.rpc.peers import ServerProcess


class Connect(Protocol):
    """Opens a session over the binding that is being tested."""

    def __call__(self, **hello: Any) -> Client: ...


@pytest.fixture(scope="package")
def served(require_device: RequireDevice) -> Iterator[ServerProcess]:
    require_device("opencl")
    # Long enough for a client that says nothing while others are tested.
    options = ("--websocket", "ws://127.0.0.1:0", "--silence", "600")
    with ServerProcess(*options) as process:
        yield process


@pytest.fixture(scope="package")
def served_with_keys(
    require_device: RequireDevice, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, Keys]]:
    require_device("opencl")
    folder = tmp_path_factory.mktemp("keys")
    device, client = make_pair("device"), make_pair("client")
    admit(folder / "clients", client.name, client.public)
    words = ["--key", str(write_pair(device, folder)), "--clients", str(folder / "clients")]
    with ServerProcess(*words, "--silence", "600") as process:
        yield process, (client.public, client.secret, process.line["server_key"])


@pytest.fixture(scope="package", params=["zmq", "curve", "websocket"])
def binding(request: pytest.FixtureRequest) -> str:
    """How a server is reached: ZeroMQ on sockets of ours; with keys, on libzmq's; WebSocket."""
    name: str = request.param
    return name


@pytest.fixture(scope="package")
def connect(request: pytest.FixtureRequest, binding: str) -> Connect:
    if binding == "curve":
        with_keys, keys = request.getfixturevalue("served_with_keys")
        return partial(Client, with_keys.line, "zmq", keys=keys)
    return partial(Client, request.getfixturevalue("served").line, binding)


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
