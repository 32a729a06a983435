"""What the watch over a session's server takes of this process, and gives back."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from tapml_rpc.link import Link
from tapml_rpc.session import Session
from tapml_rpc.websocket.opening import open_websocket
from tapml_rpc.zeromq.opening import open_zeromq
from tapml_targets.errors import DeviceLostError
from tests.rpc.faults.ground import open_descriptors, wait_for
from tests.rpc.peers import ServerProcess

SESSIONS = 8


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    options = ("--websocket", "ws://127.0.0.1:0")
    with ServerProcess(*options, device="cpu") as process:
        yield process


@pytest.mark.parametrize(
    ("open_link", "binding"), [(open_zeromq, "address"), (open_websocket, "websocket")]
)
def test_a_lost_session_that_is_forgotten_leaves_no_descriptor(
    server: ServerProcess, open_link: Callable[..., Link], binding: str
) -> None:
    gc.collect()
    before = open_descriptors()
    sessions = [Session(open_link(server.line[binding], timeout=60)) for _ in range(SESSIONS)]
    server.process.kill()
    for session in sessions:
        # A worker dies with its supervisor, and a moment after it.
        with pytest.raises(DeviceLostError):
            while True:
                session.fence()
    # None of them is closed.
    del session
    sessions.clear()

    def given_back() -> bool:
        gc.collect()
        return open_descriptors() <= before

    wait_for(given_back)
