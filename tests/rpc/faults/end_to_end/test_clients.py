"""Clients that vanish, stand still or keep doing harm: nothing of them is left, nobody notices."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest

from scripts.soak_runtime import served
from tapml_rpc import wire
from tapml_rpc.client import Session
from tapml_rpc.watch import SILENCE_SECONDS
from tapml_targets.errors import DeviceRestartedError, TapmlError
from tests.conftest import RequireDevice
from tests.rpc.faults.ground import (
    BINDINGS,
    PATIENCE_SECONDS,
    ClientProcess,
    Served,
    call,
    exists,
    hang,
    nothing_left,
    operator_test,
    wait_for,
)
from tests.rpc.libraries import WRITES_TO_NOWHERE
from tests.rpc.peers import RawPeer

# One session holds memory, one uploads, one waits for a kernel that never ends.
BUSY_CLIENT = """
session, uploading, waiting = (connect(address, timeout=60) for _ in range(3))
kept = session.allocate(8 << 20)
session.fence()
target = uploading.allocate(8 << 20)
uploading.fence()
def upload():
    while True:
        uploading.write(target, bytes(8 << 20))
threading.Thread(target=upload, daemon=True).start()
hang(waiting)
print("busy", flush=True)
waiting.fence()
"""
STANDING_CLIENT = """
session = connect(address, timeout=60)
kept = session.allocate(8 << 20)
session.fence()
print("there", flush=True)
sys.stdin.readline()
try:
    session.fence()
except Exception as error:
    print(type(error).__name__, str(error).partition("\\n")[0], flush=True)
"""


def test_a_client_that_is_killed_leaves_nothing_whatever_it_was_doing(
    server: Served, binding: str
) -> None:
    with ClientProcess(server.address(binding), BUSY_CLIENT) as client:
        assert client.line() == "busy"
        wait_for(lambda: server.books.pong()["device_bytes"] >= 16 << 20)
        assert server.books.pong()["sessions"] == 4
        client.process.kill()


@pytest.fixture(scope="module")
def impatient_server(require_device: RequireDevice) -> Iterator[Served]:
    """A server that gives up a silent client soon."""
    require_device("opencl")
    with served("opencl:0", "--silence", "4") as (server, books):
        yield Served(server, books)


def test_a_client_that_is_stopped_is_given_up_and_hears_so_when_it_goes_on(
    impatient_server: Served,
) -> None:
    books = impatient_server.books
    with nothing_left(books), ExitStack() as stack:
        clients = [
            stack.enter_context(ClientProcess(impatient_server.address(binding), STANDING_CLIENT))
            for binding in BINDINGS
        ]
        for client in clients:
            assert client.line() == "there"
        assert books.pong()["sessions"] == 3
        for client in clients:
            client.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: books.pong()["sessions"] == 1)
        for client in clients:
            client.process.send_signal(signal.SIGCONT)
            out, _ = client.process.communicate("\n", timeout=PATIENCE_SECONDS)
            assert out.startswith("DeviceLostError")


def test_a_client_that_is_stopped_for_a_while_keeps_its_session(server: Served) -> None:
    with ExitStack() as stack:
        clients = [
            stack.enter_context(ClientProcess(server.address(binding), STANDING_CLIENT))
            for binding in BINDINGS
        ]
        for client in clients:
            assert client.line() == "there"
            client.process.send_signal(signal.SIGSTOP)
        # For as long as a client that runs waits for its server.
        time.sleep(SILENCE_SECONDS + 1)
        for client in clients:
            client.process.send_signal(signal.SIGCONT)
            out, _ = client.process.communicate("\n", timeout=PATIENCE_SECONDS)
            assert (client.process.returncode, out) == (0, "")


def test_three_clients_get_right_results_while_a_fourth_keeps_crashing_its_worker(
    server: Served, binding: str
) -> None:
    over = threading.Event()
    failures: list[BaseException] = []
    done = [0, 0, 0]

    def work(number: int, session: Session) -> None:
        try:
            while not over.is_set():
                # Each has data of its own: what came from another's memory would be seen.
                operator_test(session, 100.0 * number + done[number] % 50)
                done[number] += 1
        except BaseException as error:
            failures.append(error)

    sessions = [server.connect(binding) for _ in range(3)]
    threads = [
        threading.Thread(target=work, args=(number, session))
        for number, session in enumerate(sessions)
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4):
            with server.connect(binding) as bad:
                operator_test(bad, -1)
                call(bad, -1, WRITES_TO_NOWHERE)
                with pytest.raises(DeviceRestartedError):
                    bad.fence()
            seen = min(done)
            wait_for(partial(_has_gone_on, done, seen, failures))
    finally:
        over.set()
        for thread in threads:
            thread.join()
        for session in sessions:
            session.close()
    assert not failures, failures


def test_a_connection_has_one_session_the_last_it_began(server: Served) -> None:
    with RawPeer(server.address("zmq")) as peer:
        again = {"type": "hello", "versions": [wire.VERSION], "download_window": 1 << 20}
        for _ in range(3):
            peer.control.send(wire.pack(again))
            peer.welcome = wire.unpack(peer.control.recv())
        assert peer.welcome["type"] == "welcome"
        peer.wait_for(sessions=2)


def _has_gone_on(done: list[int], seen: int, failures: list[BaseException]) -> bool:
    return bool(failures) or min(done) > seen


def test_a_client_whose_connection_is_cut_while_the_device_works_leaves_nothing(
    server: Served,
) -> None:
    session, worker = server.open("zmq")
    with session:
        operator_test(session)
        hang(session)
        data = getattr(session._link, "_data")  # noqa: B009 - of the link over ZeroMQ
        data._socket.shutdown(socket.SHUT_RDWR)
        wait_for(lambda: not exists(worker))
        with pytest.raises(TapmlError):
            session.fence()


def test_two_sessions_at_once_get_what_each_asked_for(server: Served) -> None:
    with server.connect("zmq") as one, server.connect("websocket") as other:
        for number in range(20):
            results = [call(each, number + place) for place, each in enumerate((one, other))]
            for place, (each, result) in enumerate(zip((one, other), results, strict=True)):
                found = np.frombuffer(each.read(result.buffer), np.float32)
                assert (found == number + place + 1).all()
