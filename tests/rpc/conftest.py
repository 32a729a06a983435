"""Real servers on a real OpenCL device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tapml.package.in_process import open_in_process
from tapml_rpc.client import Session, connect
from tapml_rpc.local import open_local
from tests.conftest import RequireDevice
from tests.rpc.peers import RawPeer, ServerProcess


@pytest.fixture(scope="module", params=["local", "served", "this-process"])
def shared_session(
    request: pytest.FixtureRequest, require_device: RequireDevice
) -> Iterator[Session]:
    """A session with a worker of this process, over a server, and one that this process drives."""
    device = require_device("opencl")[0]
    with ExitStack() as stack:
        if request.param == "served":
            served = stack.enter_context(ServerProcess())
            yield stack.enter_context(connect(served.address))
        else:
            opened = open_local if request.param == "local" else open_in_process
            yield stack.enter_context(opened(device))


@pytest.fixture
def session(shared_session: Session) -> Iterator[Session]:
    """A session whose stream is sound when the test begins."""
    shared_session.reset()
    yield shared_session


@pytest.fixture(scope="module")
def server(require_device: RequireDevice) -> Iterator[ServerProcess]:
    require_device("opencl")
    with ServerProcess() as process:
        yield process


@pytest.fixture
def peer(server: ServerProcess) -> Iterator[RawPeer]:
    with RawPeer(server.address) as raw:
        yield raw
