"""Servers for these tests, and clients over each binding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import pytest

from tapml.cli.secrets import admit, make_pair, write_pair
from tapml_rpc.local import start_local
from tapml_rpc.tracker.lease import Lease
from tapml_rpc.tracker.request import request_device
from tapml_rpc.welcome import Bounds
from tests.conftest import RequireDevice
from tests.rpc.conformance.clients import PATIENCE_SECONDS, Client, Keys, LocalConnection
from tests.rpc.peers import ServerProcess
from tests.rpc.tracker.trackers import TrackerProcess


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


WAYS = {
    "zmq": "zmq",
    "curve": "curve",
    "websocket": "websocket",
    "relayed": "zmq",
    "relayed websocket": "websocket",
    "local": "local",
}
"""Every way to a device, and the binding that is spoken on it."""


@pytest.fixture(scope="package")
def tracker() -> Iterator[TrackerProcess]:
    with TrackerProcess("tcp://127.0.0.1:0", "--websocket", "ws://127.0.0.1:0") as process:
        yield process


@contextmanager
def relayed(tracker: str, name: str) -> Iterator[Lease]:
    """A device that only its tracker reaches, lent."""
    words = ("--tracker", tracker, "--name", name, "--through-tracker", "--silence", "600")
    with (
        ServerProcess("--websocket", "ws://127.0.0.1:0", *words),
        request_device(tracker, name=name, timeout=PATIENCE_SECONDS) as lease,
    ):
        yield lease


class LocalClient(Client):
    """A worker of this process's own, whose data connection a test speaks on.

    Its control connection is calls in this process: a heartbeat is what its board says.
    """

    def __init__(self) -> None:
        self.worker = start_local("opencl:0")
        self.worker._opened.wait(PATIENCE_SECONDS)
        self.sequence = 0
        own = {"session": self.worker._token, "epoch": self.worker._epoch}
        self.welcome = {"type": "welcome", "bounds": Bounds().to_wire(), **own}
        self._data = LocalConnection(self.worker._connection)

    def __exit__(self, *_: object) -> None:
        self.worker.close()
        self.data.close()

    def ping(self, **fields: Any) -> dict[str, Any]:
        board = self.worker.process.board
        pong = {"type": "pong", "sequence": 1, "answered": board.answered}
        return {**pong, "device_bytes": board.device_bytes, "sessions": 1}


@pytest.fixture(scope="package", params=list(WAYS))
def way(request: pytest.FixtureRequest) -> str:
    """How the device is reached."""
    name: str = request.param
    return name


@pytest.fixture(scope="package")
def binding(way: str) -> str:
    """What is spoken: ZeroMQ on sockets of ours; with keys, on libzmq's; WebSocket."""
    return WAYS[way]


@pytest.fixture(scope="package")
def open_session(request: pytest.FixtureRequest, way: str) -> Iterator[Callable[..., Client]]:
    if way == "local":
        request.getfixturevalue("require_device")("opencl")
        yield lambda **hello: LocalClient()
    elif way == "curve":
        with_keys, keys = request.getfixturevalue("served_with_keys")
        yield partial(Client, with_keys.line, "zmq", keys=keys)
    elif way == "relayed":
        tracker = request.getfixturevalue("tracker")
        with relayed(tracker.address, "bytes") as lease:
            line, relay = {"address": ""}, ("127.0.0.1", tracker.relay_port)
            yield partial(Client, line, "zmq", lease.token, relay=relay)
    elif way == "relayed websocket":
        tracker = request.getfixturevalue("tracker")
        with relayed(tracker.websocket, "frames") as lease:
            yield partial(Client, {"websocket": tracker.websocket}, "websocket", lease.token)
    else:
        yield partial(Client, request.getfixturevalue("served").line, way)


@pytest.fixture(scope="package")
def connect(open_session: Callable[..., Client], way: str) -> Connect:
    if way == "local":
        pytest.skip("a worker of one's own has one session, and neither hello nor a second socket")
    return open_session


@pytest.fixture(scope="package")
def shared(open_session: Callable[..., Client]) -> Iterator[Client]:
    """A session whose hello has what nobody knows: it is not looked at."""
    with open_session(versions=[7, 3], features=["later"], later={"a": [1, None]}) as client:
        yield client


@pytest.fixture
def client(shared: Client) -> Client:
    """The shared session with a sound stream and its handle 1 free."""
    answer, _ = shared.batch(["reset"], ["free", 1])
    assert "error" not in answer
    return shared
