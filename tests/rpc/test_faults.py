"""A worker of this process: nothing hangs and nothing is left behind, whatever dies.

Those of ``tapml rpc serve``, over both bindings, are in tests/rpc/faults/end_to_end.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from tapml_rpc.client import RemoteTensor, Session, connect
from tapml_rpc.local import LocalWorker, open_local
from tapml_rpc.supervisor.worker_process import WorkerProcess
from tapml_targets.child_process import is_busy
from tapml_targets.errors import (
    EXIT_DEVICE_LOST,
    DeviceLostError,
    InputError,
    KernelTimeoutError,
    SetupError,
    TapmlError,
)
from tapml_targets.template import Process
from tests.conftest import RequireDevice
from tests.rpc.faults.ground import open_descriptors, wait_for
from tests.rpc.libraries import NEVER_ENDS, WRITES_TO_NOWHERE, add_one_library
from tests.rpc.peers import RawPeer, ServerProcess

NOTICE_SECONDS = 30.0
PATIENCE_SECONDS = 60.0


@pytest.fixture
def doomed(require_device: RequireDevice) -> Iterator[Session]:
    """A session whose server is about to have an accident."""
    require_device("opencl")
    with open_local("opencl") as session:
        yield session


def process_of(session: Session) -> Process:
    return worker_of(session)._process


def worker_of(session: Session) -> WorkerProcess:
    worker = session._link._watch  # type: ignore[attr-defined]
    assert isinstance(worker, LocalWorker)
    return worker.process


def call_add_one(session: Session, source: bytes) -> None:
    library = session.upload(add_one_library(source))
    tensors = []
    for _ in range(2):
        buffer = session.allocate(256)
        session.write(buffer, np.ones(64, np.float32))
        tensors.append(RemoteTensor(buffer, 0, (64,), "float32"))
    session.call(library, "add_one", tensors)


def test_a_server_killed_while_it_is_waited_for_is_noticed(doomed: Session) -> None:
    call_add_one(doomed, NEVER_ENDS)
    killer = threading.Timer(0.5, process_of(doomed).kill)
    killer.start()
    started = time.monotonic()
    with pytest.raises(DeviceLostError, match="SIGKILL") as caught:
        doomed.fence()
    assert time.monotonic() - started < NOTICE_SECONDS
    assert "last commands sent:" in str(caught.value) and "fence()" in str(caught.value)
    assert caught.value.exit_code == EXIT_DEVICE_LOST
    with pytest.raises(DeviceLostError):
        doomed.allocate(4)
        doomed.fence()


def test_a_stopped_server_is_noticed_without_its_help(doomed: Session) -> None:
    doomed.fence()
    process = process_of(doomed)
    os.kill(process.pid, signal.SIGSTOP)
    # A busy machine delivers the signal late: until then the server answers.
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    started = time.monotonic()
    with pytest.raises(DeviceLostError, match="stood still for 3 s"):
        doomed.fence()
    assert time.monotonic() - started < 2 * NOTICE_SECONDS


def test_a_kernel_over_its_deadline_ends_the_server_and_says_so(
    require_device: RequireDevice,
) -> None:
    require_device("opencl")
    with open_local("opencl", kernel_deadline=1.0) as session:
        started = time.monotonic()
        call_add_one(session, NEVER_ENDS)
        with pytest.raises(KernelTimeoutError, match="not finished after 1 s, in fence") as caught:
            session.fence()
        assert 1 <= time.monotonic() - started < 1 + NOTICE_SECONDS
        assert "finish" in caught.value.remote_traceback
        assert process_of(session).wait(60) == -signal.SIGKILL


def test_a_crashing_kernel_is_reported_with_its_signal_and_the_servers_last_words(
    doomed: Session,
) -> None:
    call_add_one(doomed, WRITES_TO_NOWHERE)
    with pytest.raises(DeviceLostError, match="SIGSEGV") as caught:
        doomed.fence()
    assert "Fatal Python error: Segmentation fault" in caught.value.driver_log


def test_a_closed_session_gives_back_its_memory(server: ServerProcess) -> None:
    with RawPeer(server.address) as peer:
        with connect(server.address) as session:
            buffer = session.allocate(1 << 20)
            session.fill(buffer, b"x")
            session.fence()
            peer.wait_for(sessions=2, device_bytes=1 << 20)
        peer.wait_for(sessions=1, device_bytes=0)
        with pytest.raises(InputError, match="closed"):
            session.fence()


def test_sessions_do_not_see_each_others_handles(server: ServerProcess) -> None:
    with connect(server.address) as first, connect(server.address) as second:
        one, other = first.allocate(4), second.allocate(4)
        assert one.handle == other.handle
        first.write(one, b"aaaa")
        second.write(other, b"bbbb")
        assert bytes(first.read(one)) == b"aaaa"
        assert bytes(second.read(other)) == b"bbbb"
        with pytest.raises(InputError, match="does not belong to this session"):
            first.read(other)


def test_a_client_that_takes_no_bytes_holds_up_nobody(server: ServerProcess) -> None:
    with (
        RawPeer(server.address, download_window=2 << 20) as greedy,
        RawPeer(server.address) as peer,
    ):
        greedy.send(
            {
                "type": "batch",
                "sequence": 1,
                "commands": [["allocate", 1, 16 << 20], ["read", 1, 0, 16 << 20]],
            }
        )
        started = time.monotonic()
        assert "error" not in peer.batch(["allocate", 1, 64], ["fence"])[0]
        assert time.monotonic() - started < NOTICE_SECONDS
        pieces = 0
        while True:
            header, chunk = greedy.receive()
            if header["type"] == "done":
                break
            assert (header["type"], header["offset"]) == ("data", pieces * (2 << 20))
            pieces += 1
            greedy.send({"type": "credit", "bytes": len(chunk)})
        assert pieces == 8
        assert header["results"] == [[1, 16 << 20]]


def test_nothing_listening_is_said_within_the_timeout() -> None:
    started = time.monotonic()
    with pytest.raises(SetupError, match=r"no tapml server answers.*tapml rpc serve"):
        connect("tcp://127.0.0.1:1", timeout=0.3)
    assert time.monotonic() - started < NOTICE_SECONDS


def test_an_address_that_is_none_is_an_input_error() -> None:
    with pytest.raises(InputError, match="expected an address such as"):
        connect("nowhere", timeout=0.3)


def test_a_forked_child_cannot_use_or_end_its_parents_session(
    require_device: RequireDevice,
) -> None:
    require_device("opencl")
    script = textwrap.dedent("""
        import os, sys
        from tapml_rpc.local import open_local
        from tapml_targets.errors import InputError
        with open_local("opencl") as session:
            buffer = session.allocate(4)
            session.write(buffer, b"mine")
            session.fence()
            child = os.fork()
            if not child:
                try:
                    session.fence()
                except InputError as error:
                    print(error, flush=True)
                sys.exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            print(bytes(session.read(buffer)).decode(), flush=True)
    """)
    outcome = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert outcome.stdout == "this session belongs to the process that forked this one\nmine\n"


def test_closing_a_local_session_ends_its_process_and_leaks_no_descriptor(
    require_device: RequireDevice,
) -> None:
    require_device("opencl")
    with open_local("opencl") as session:
        session.fence()
    # What an earlier test left is not to be collected in between.
    gc.collect()
    before = open_descriptors()
    # Sessions of other tests may be open in this process.
    threads = set(threading.enumerate())
    with open_local("opencl") as session:
        session.fence()
        process = process_of(session)
    assert process.poll() == 0
    # The thread that keeps what it printed reads to the end. One of an earlier test may have ended.
    wait_for(lambda: open_descriptors() <= before)
    assert {t for t in threading.enumerate() if t.name.startswith("tapml")} <= threads


def test_a_lost_session_closes_quietly(doomed: Session) -> None:
    process_of(doomed).kill()
    with pytest.raises(TapmlError):
        for _ in range(1000):
            doomed.fence()
    doomed.close()
    doomed.close()


def test_a_session_that_is_lost_and_forgotten_holds_up_nobody() -> None:
    with ServerProcess(device="cpu") as server:
        session = connect(server.address, timeout=PATIENCE_SECONDS)
        server.kill()
        with pytest.raises(DeviceLostError):
            while True:
                session.fence()
    forgotten = weakref.ref(session)
    del session
    collecting = threading.Thread(target=gc.collect, daemon=True)
    collecting.start()
    collecting.join(PATIENCE_SECONDS)
    assert not collecting.is_alive() and forgotten() is None


def test_a_server_that_waits_for_a_processor_is_slow_and_not_gone(doomed: Session) -> None:
    """What tells a starved process from a stopped one is what the system says of its threads."""
    worker = worker_of(doomed)
    call_add_one(doomed, NEVER_ENDS)
    wait_for(lambda: is_busy(worker.pid))
    os.kill(worker.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        wait_for(lambda: not is_busy(worker.pid))
    finally:
        os.kill(worker.pid, signal.SIGKILL)
