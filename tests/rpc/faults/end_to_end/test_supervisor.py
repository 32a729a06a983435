"""A supervisor that is killed takes all it had along; one that stands still is given up."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from scripts.processes import family
from scripts.soak_runtime import served
from tapml_rpc.client import RemoteBuffer, Session, connect
from tapml_targets.errors import DeviceLostError, DeviceRestartedError, SetupError
from tests.conftest import RequireDevice
from tests.rpc.faults.ground import (
    BINDINGS,
    PATIENCE_SECONDS,
    Served,
    exists,
    hang,
    make_peer,
    nothing_left,
    open_descriptors,
    operator_test,
    wait_for,
)
from tests.rpc.network import free_ports


class Mortal:
    """A server that may be killed and comes back under the same addresses."""

    def __init__(self) -> None:
        port, data_port, page_port = free_ports(3)
        self._options = (
            *("--bind", f"tcp://127.0.0.1:{port}", "--data-port", str(data_port)),
            *("--websocket", f"ws://127.0.0.1:{page_port}"),
        )
        self._life = ExitStack()
        self.begin()

    def begin(self) -> None:
        """Start it."""
        self.now = Served(*self._life.enter_context(served("opencl:0", *self._options)))

    def kill(self) -> None:
        """End it without warning."""
        os.kill(self.now.pid, signal.SIGKILL)

    def bury(self) -> None:
        """Let go of what this process had of it."""
        self._life.close()


@pytest.fixture(scope="module")
def mortal(require_device: RequireDevice) -> Iterator[Mortal]:
    require_device("opencl")
    server = Mortal()
    yield server
    server.bury()


def test_a_supervisor_that_stands_still_is_given_up_and_then_knows_nothing_of_its_sessions(
    mortal: Mortal,
) -> None:
    with nothing_left(mortal.now.books), ExitStack() as stack:
        sessions = [stack.enter_context(mortal.now.connect(binding)) for binding in BINDINGS]
        targets = [session.allocate(32 << 20) for session in sessions]
        for session in sessions:
            session.fence()
        os.kill(mortal.now.pid, signal.SIGSTOP)
        try:
            with ThreadPoolExecutor() as pool:
                # In the middle of an upload: nobody takes its bytes, or a worker that nobody minds.
                uploads = [
                    pool.submit(_write_on, session, target)
                    for session, target in zip(sessions, targets, strict=True)
                ]
                # Who comes now waits as long as it asked for.
                for binding in BINDINGS:
                    with pytest.raises(SetupError):
                        connect(mortal.now.address(binding), timeout=0.5)
                for upload in uploads:
                    with pytest.raises(DeviceLostError, match="has not answered for") as caught:
                        upload.result(PATIENCE_SECONDS)
                    assert "last commands sent:" in str(caught.value)
            for session in sessions:
                session.close()
        finally:
            os.kill(mortal.now.pid, signal.SIGCONT)
        for binding in BINDINGS:
            with mortal.now.connect(binding) as after:
                operator_test(after)


def _write_on(session: Session, target: RemoteBuffer) -> None:
    while True:
        session.write(target, bytes(32 << 20))


def test_a_supervisor_that_is_killed_leaves_no_process_and_its_next_life_takes_no_old_handle(
    mortal: Mortal, binding: str
) -> None:
    descriptors = open_descriptors()
    session = mortal.now.connect(binding)
    operator_test(session)
    kept = session.allocate(1024)
    hang(session)
    processes = family(mortal.now.pid)
    threading.Timer(0.2, mortal.kill).start()
    with pytest.raises(DeviceLostError) as caught:
        session.fence()
    assert "last commands sent:" in str(caught.value) and "fence()" in str(caught.value)
    # It leaves this process something to be reaped, and no more.
    wait_for(lambda: not any(map(exists, processes)))
    mortal.bury()
    mortal.begin()
    # Nothing resumes silently.
    with pytest.raises(DeviceLostError):
        session.read(kept)
    with mortal.now.connect(binding) as after:
        with pytest.raises(DeviceRestartedError, match="has restarted since"):
            after.read(kept)
        operator_test(after)
    with make_peer(binding, mortal.now.address(binding)) as peer:
        stale = {"session": bytes(16), "epoch": session.epoch}
        peer.send({"type": "batch", "sequence": 7, "commands": [["fence"]], **stale})
        answer, _ = peer.receive()
        assert (answer["type"], answer["sequence"]) == ("error", 7)
        assert answer["error"]["kind"] == "DeviceRestartedError"
    session.close()
    # Fewer where what an earlier test left has been collected meanwhile; one or two more where a
    # thread that it left has opened some. A session that leaks has more than that.
    wait_for(lambda: open_descriptors() <= descriptors + 2)
