"""What kills, stops or fills a worker costs its own session, which is told everything."""

from __future__ import annotations

import os
import re
import resource
import signal
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tapml_rpc import wire
from tapml_rpc.client import RemoteBuffer, Session, connect
from tapml_targets.errors import (
    DeviceRestartedError,
    InputError,
    KernelTimeoutError,
    RemoteError,
)
from tests.rpc.faults.ground import (
    BINDINGS,
    PATIENCE_SECONDS,
    Peer,
    Served,
    assert_tells_all,
    call,
    hang,
    operator_test,
    state_of,
    wait_for,
)
from tests.rpc.libraries import WRITES_TO_NOWHERE
from tests.rpc.peers import RawPeer
from tests.rpc.websocket.peers import receive


def test_a_crash_in_a_driver_is_told_with_its_signal_and_last_words(
    server: Served, binding: str
) -> None:
    with server.connect(binding) as good, server.connect(binding) as bad:
        operator_test(good)
        operator_test(bad)
        call(bad, 1, WRITES_TO_NOWHERE)
        with pytest.raises(DeviceRestartedError) as caught:
            bad.fence()
        assert_tells_all(caught.value, "died", "signal SIGSEGV")
        assert "Fatal Python error: Segmentation fault" in caught.value.driver_log
        # It is over, and stays so.
        with pytest.raises(DeviceRestartedError):
            operator_test(bad)
        operator_test(good)
    with server.connect(binding) as after:
        operator_test(after)


def test_a_kernel_that_hangs_ends_at_its_deadline_and_control_is_answered_until_then(
    server: Served, binding: str
) -> None:
    with server.connect(binding) as good, server.connect(binding, kernel_deadline=1.0) as bad:
        operator_test(good)
        buffer = bad.allocate(2 << 20)
        bad.fence()
        started = time.monotonic()
        hang(bad)
        # As many payloads as are taken without an answer: none has one before the kernel ends.
        for _ in range(4):
            bad._link.send([["write", buffer.handle, 0, 2 << 20, 0]], bytes(2 << 20))
        assert server.books.pong()["type"] == "pong"
        with pytest.raises(KernelTimeoutError) as caught:
            bad.fence()
        assert time.monotonic() - started >= 1
        assert_tells_all(caught.value, "not finished after 1 s")
        assert "Current thread" in caught.value.remote_traceback
        operator_test(good)


def test_a_worker_that_is_killed_is_told_with_its_signal_and_what_it_ran(
    server: Served, binding: str
) -> None:
    session, worker = server.open(binding)
    with session:
        operator_test(session)
        hang(session)
        threading.Timer(0.2, os.kill, [worker, signal.SIGKILL]).start()
        with pytest.raises(DeviceRestartedError, match="signal SIGKILL") as caught:
            session.fence()
        # Begun, unless the machine was too busy to begin.
        told = "last commands (begun|received):.*add_one.*last commands sent:.*fence"
        assert re.search(told, str(caught.value), re.DOTALL)


def test_a_worker_that_is_killed_while_it_is_written_to_costs_its_session_alone(
    server: Served, binding: str
) -> None:
    with server.connect(binding) as good:
        operator_test(good)
        bad, worker = server.open(binding)
        with bad:
            buffer = bad.allocate(8 << 20)
            bad.fence()
            threading.Timer(0.05, os.kill, [worker, signal.SIGKILL]).start()
            with pytest.raises(DeviceRestartedError):
                while True:
                    bad.write(buffer, bytes(8 << 20))
        operator_test(good)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_harmed_while_it_waits_for_a_session_gets_none(
    server: Served, how: signal.Signals
) -> None:
    worker = server.waiting_worker()
    os.kill(worker, how)
    wait_for(lambda: state_of(worker) in ("X", "Z", "T"))
    with connect(server.address("zmq"), timeout=PATIENCE_SECONDS) as session:
        operator_test(session)


def test_a_worker_that_is_stopped_is_found_and_ended_wherever_it_stood(server: Served) -> None:
    with ExitStack() as stack:
        sessions: list[Session] = []
        peers: list[Peer] = []
        workers: list[int] = []
        hanging: list[Session] = []
        for binding in BINDINGS:
            session, idle = server.open(binding)
            sessions.append(stack.enter_context(session))
            operator_test(session)
            peer, sending = server.peer(binding)
            stack.enter_context(peer)
            peers.append(peer)
            # This one stands in the middle of a download, and says that it waits for its client.
            commands = [["allocate", 1, 8 << 20], ["read", 1, 0, 8 << 20]]
            peer.send({"type": "batch", "sequence": 1, "commands": commands})
            assert peer.receive()[0]["type"] == "data"
            wait_for(partial(_rests, peer))
            workers += [idle, sending]
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        for binding in BINDINGS:
            session, running = server.open(binding, kernel_deadline=3.0)
            hanging.append(stack.enter_context(session))
            hang(session)
            os.kill(running, signal.SIGSTOP)
        for session in sessions:
            # From now on it has something to do.
            session._link.send([["fence"]], b"")
        for session in sessions:
            with pytest.raises(DeviceRestartedError, match=r"stood still for .* and was ended"):
                session.fence()
        for session in hanging:
            # Over its deadline, where it was stopped in the kernel and not on its way there.
            with pytest.raises((KernelTimeoutError, DeviceRestartedError)):
                session.fence()
        for peer in peers:
            assert _event(peer)["error"]["kind"] == "DeviceRestartedError"


def test_memory_that_runs_out_on_the_device_is_told_in_the_drivers_words(
    server: Served, binding: str
) -> None:
    session, worker = server.open(binding)
    with server.connect(binding) as good, session:
        operator_test(session)
        # More than the server grants is refused, and no more than that.
        with pytest.raises(InputError, match="its bound is"):
            session.allocate(session._link.bounds.session_bytes + 1)
            session.fence()
        session.reset()
        operator_test(session)
        # Now the machine itself has no more.
        pages = int(Path(f"/proc/{worker}/statm").read_text("ascii").split()[0])
        most = pages * resource.getpagesize() + (96 << 20)
        resource.prlimit(worker, resource.RLIMIT_AS, (most, most))
        kept: list[RemoteBuffer] = []
        with pytest.raises(RemoteError) as caught:
            while len(kept) < 100:
                kept.append(session.allocate(16 << 20))
                session.fill(kept[-1], b"\x01")
                session.fence()
        if isinstance(caught.value, DeviceRestartedError):
            # PoCL ends its process where it cannot go on, and Python where it cannot.
            assert re.search(r"signal SIG\w+|exit code", str(caught.value))
            assert "SIGABRT" not in str(caught.value) or caught.value.driver_log
        else:
            session.reset()
            for buffer in kept:
                session.free(buffer)
            operator_test(session)
        operator_test(good)


def _rests(peer: Peer) -> bool:
    """Whether its session runs nothing just now."""
    return "busy_seconds" not in peer.ping()


def _event(peer: Peer) -> wire.Header:
    """The server's last words to a peer."""
    while True:
        if isinstance(peer, RawPeer):
            assert peer.control.poll(int(PATIENCE_SECONDS * 1000))
            header = wire.unpack(peer.control.recv())
        else:
            header = receive(peer.control)[0]
        if header["type"] == "event":
            return header
