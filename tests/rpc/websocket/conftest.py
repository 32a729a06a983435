"""Real servers on a real OpenCL device, reached over WebSocket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tapml_rpc.session import Session
from tapml_rpc.websocket.opening import open_websocket
from tests.conftest import RequireDevice
from tests.rpc.websocket.peers import WebSocketPeer
from tests.rpc.websocket.serving import WebSocketServer


@pytest.fixture(scope="module")
def server(require_device: RequireDevice) -> Iterator[WebSocketServer]:
    require_device("opencl")
    with WebSocketServer() as process:
        yield process
    assert not process.errors, process.errors.decode()


@pytest.fixture
def peer(server: WebSocketServer) -> Iterator[WebSocketPeer]:
    with WebSocketPeer(server.address) as raw:
        yield raw


@pytest.fixture(scope="module")
def shared_session(server: WebSocketServer) -> Iterator[Session]:
    with Session(open_websocket(server.address, timeout=20)) as session:
        yield session


@pytest.fixture
def session(shared_session: Session) -> Iterator[Session]:
    """A session whose stream is sound when the test begins."""
    shared_session.reset()
    yield shared_session
