"""What dies costs its own session: workers, kernels, clients, the supervisor itself."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tapml_rpc import wire
from tapml_rpc.client import RemoteTensor, Session, connect
from tapml_targets.errors import DeviceLostError, KernelTimeoutError, TapmlError
from tests.conftest import RequireDevice
from tests.rpc.libraries import ADD_ONE, NEVER_ENDS, WRITES_TO_NOWHERE, add_one_library
from tests.rpc.peers import RawPeer, ServerProcess

SUPERVISOR = "tapml_rpc.supervisor.serve"
NOTICE_SECONDS = 30.0


@pytest.fixture
def supervisor(require_device: RequireDevice) -> Iterator[ServerProcess]:
    require_device("opencl")
    with ServerProcess("--kernel-deadline", "1", module=SUPERVISOR) as process:
        yield process


def add_one(session: Session, source: bytes = ADD_ONE) -> float:
    """Run the operator on ones; the first element of what it makes."""
    library = session.upload(add_one_library(source))
    x, y = (session.allocate(256) for _ in range(2))
    session.write(x, np.ones(64, np.float32))
    session.call(library, "add_one", [RemoteTensor(each, 0, (64,), "float32") for each in (x, y)])
    return float(np.frombuffer(session.read(y), np.float32)[0])


def workers_of(pid: int) -> set[int]:
    """The supervisor's child processes."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        found |= {int(child) for child in (task / "children").read_text().split()}
    return found


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("source", "expected", "words"),
    [
        (WRITES_TO_NOWHERE, DeviceLostError, ("SIGSEGV", "Fatal Python error")),
        (NEVER_ENDS, KernelTimeoutError, ("not finished after 1 s", "read(")),
    ],
    ids=["crash", "hang"],
)
def test_a_bad_kernel_costs_its_own_session_and_no_other(
    supervisor: ServerProcess, source: bytes, expected: type[TapmlError], words: tuple[str, str]
) -> None:
    with connect(supervisor.address) as good, connect(supervisor.address) as bad:
        assert add_one(good) == 2
        started = time.monotonic()
        with pytest.raises(expected) as caught:
            add_one(bad, source)
        assert time.monotonic() - started < 1 + NOTICE_SECONDS
        shown = str(caught.value) + "".join(caught.value.__notes__)
        assert all(word in shown for word in words), shown
        assert "last commands" in shown
        # Said by the process that ended, before it ended.
        assert "worker.py" in caught.value.remote_traceback  # type: ignore[attr-defined]
        assert add_one(good) == 2
    with connect(supervisor.address) as after:
        assert add_one(after) == 2


def test_a_killed_worker_is_noticed_and_named(supervisor: ServerProcess) -> None:
    with connect(supervisor.address) as session:
        assert add_one(session) == 2
        for pid in workers_of(supervisor.process.pid):
            os.kill(pid, signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(DeviceLostError, match="SIGKILL"):
            for _ in range(1000):
                session.fence()
        assert time.monotonic() - started < NOTICE_SECONDS
    # The spare one was killed as well: the next client gets another.
    with connect(supervisor.address) as after:
        assert add_one(after) == 2


def test_a_stopped_worker_ends_at_its_deadline(supervisor: ServerProcess) -> None:
    with connect(supervisor.address) as session:
        assert add_one(session) == 2
        library = session.upload(add_one_library(NEVER_ENDS))
        x, y = (session.allocate(256) for _ in range(2))
        tensors = [RemoteTensor(each, 0, (64,), "float32") for each in (x, y)]
        session.call(library, "add_one", tensors)
        for pid in workers_of(supervisor.process.pid):
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(TapmlError):
            session.fence()


def test_no_worker_outlives_its_supervisor(supervisor: ServerProcess) -> None:
    with connect(supervisor.address) as session:
        library = session.upload(add_one_library(NEVER_ENDS))
        x, y = (session.allocate(256) for _ in range(2))
        tensors = [RemoteTensor(each, 0, (64,), "float32") for each in (x, y)]
        session.call(library, "add_one", tensors)
        workers = workers_of(supervisor.process.pid)
        assert workers
        supervisor.kill()
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
        with pytest.raises(DeviceLostError):
            session.fence()


def test_after_many_sessions_nothing_is_left_but_one_spare_worker(
    supervisor: ServerProcess,
) -> None:
    pid = supervisor.process.pid

    def open_descriptors() -> int:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())

    with RawPeer(supervisor.address) as watcher:
        with connect(supervisor.address) as session:
            add_one(session)
        watcher.wait_for(sessions=1, device_bytes=0)
        wait_for(lambda: len(workers_of(pid)) == 2)
        before = open_descriptors()
        for _ in range(5):
            with connect(supervisor.address) as session:
                add_one(session)
        watcher.wait_for(sessions=1, device_bytes=0)
        wait_for(lambda: len(workers_of(pid)) == 2)
        wait_for(lambda: open_descriptors() == before)


def test_four_clients_work_on_while_one_of_them_keeps_crashing_its_worker(
    supervisor: ServerProcess,
) -> None:
    with (
        connect(supervisor.address) as one,
        connect(supervisor.address) as two,
        connect(supervisor.address) as three,
    ):
        for _ in range(4):
            with connect(supervisor.address) as bad, pytest.raises(DeviceLostError):
                add_one(bad, WRITES_TO_NOWHERE)
            assert [add_one(each) for each in (one, two, three)] == [2, 2, 2]


def test_a_connection_has_one_session_the_last_it_began(supervisor: ServerProcess) -> None:
    with RawPeer(supervisor.address) as peer:
        again = {"type": "hello", "versions": [wire.VERSION], "download_window": 1 << 20}
        for _ in range(5):
            peer.control.send(wire.pack(again))
            peer.welcome = wire.unpack(peer.control.recv())
        assert peer.welcome["type"] == "welcome"
        assert peer.ping()["sessions"] == 1


def test_a_worker_that_dies_while_it_is_written_to_costs_its_session_alone(
    supervisor: ServerProcess,
) -> None:
    # The one that waits is the next session's.
    kept = workers_of(supervisor.process.pid)
    with connect(supervisor.address) as good:
        assert add_one(good) == 2
        for _ in range(3):
            with connect(supervisor.address) as bad:
                buffer = bad.allocate(8 << 20)
                bad.fence()
                doomed = workers_of(supervisor.process.pid) - kept
                timer = threading.Timer(0.05, _kill, [doomed])
                timer.start()
                with pytest.raises(TapmlError):
                    for _ in range(1000):
                        bad.write(buffer, bytes(8 << 20))
                timer.join()
            assert add_one(good) == 2


def _kill(workers: set[int]) -> None:
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
