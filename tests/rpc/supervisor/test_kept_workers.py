"""A client's next session gets its last one's worker, with what that built and nothing else."""

from __future__ import annotations

import os
import re
import select
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tapml.cli.secrets import admit, make_pair
from tapml_rpc import wire
from tapml_rpc.client import connect
from tapml_rpc.security.allow_list import AllowList
from tapml_rpc.security.credentials import Credentials
from tapml_rpc.security.curve import ServerCurve
from tapml_rpc.supervisor import worker_process
from tapml_rpc.supervisor.hub import Hub
from tapml_rpc.supervisor.options import SupervisorOptions
from tapml_rpc.supervisor.pipe import HEAD_BYTES, make_memory
from tapml_rpc.supervisor.relay import Relay
from tapml_rpc.supervisor.websocket_front import WebSocketFront
from tapml_rpc.supervisor.worker_process import WorkerPool, WorkerProcess
from tapml_rpc.supervisor.zmq_front import ZmqFront
from tapml_rpc.tracker.lent import HeldLease
from tapml_rpc.welcome import Bounds
from tapml_targets.ranking import find_device
from tests.conftest import RequireDevice
from tests.rpc.supervisor.test_hub import HELLO, Told, enter, taken
from tests.rpc.tracker.trackers import wait_for
from tests.rpc.websocket.one_token import OneToken

ADA, BOB = "token:ada", "token:bob"
NBYTES = 1 << 16


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a worker may take long to let go of a session."""
    monkeypatch.setattr(worker_process, "_REST_SECONDS", 60.0)


@pytest.fixture
def pool(require_device: RequireDevice) -> Iterator[WorkerPool]:
    require_device("cpu")
    pool = WorkerPool(find_device("cpu"), allow_native=False)
    yield pool
    pool.close()


@pytest.fixture
def hub(require_device: RequireDevice) -> Iterator[Hub]:
    require_device("cpu")
    hub = Hub(find_device("cpu"), SupervisorOptions())
    yield hub
    for relay in list(hub._relays.values()):
        relay.end("the test is over", kill=True)
    hub.close()


def used(pool: WorkerPool, identity: str, *commands: list[object], blob: str = "") -> WorkerProcess:
    """A worker that has answered a session's one batch, to which a blob may be attached."""
    worker = taken(pool, identity)
    worker.wait_until_open()
    assert worker.pipe.next() is not None
    grant = {"type": "grant", "bounds": Bounds().to_wire(), "download_credit": 1 << 20}
    worker.pipe.send(wire.pack(grant))
    if blob:
        descriptor = make_memory(NBYTES - HEAD_BYTES, blob)
        attached = {"type": "attached", "digest": blob, "nbytes": NBYTES}
        worker.pipe.send(wire.pack(attached), descriptor=descriptor)
        os.close(descriptor)
    batch = {"type": "batch", "sequence": 1, "commands": list(commands)}
    worker.pipe.send(wire.pack(batch))
    wait_for(lambda: worker.pipe.receive() and worker.pipe.waiting() is not None)
    return worker


def kept(pool: WorkerPool) -> int:
    return len(pool._kept)


def has_kept(hub: Hub, count: int) -> bool:
    """Whether no session is open and so many workers wait."""
    return not hub._relays and kept(hub._pool) == count


def shared_memory(worker: WorkerProcess) -> list[str]:
    """The names of what it has mapped of its supervisor's."""
    return sorted(re.findall(r"memfd:(tapml-\w+)", Path(f"/proc/{worker.pid}/maps").read_text()))


def session(hub: Hub, lease: str = "") -> Relay:
    """A session of one client, its device open."""
    relay, _ = enter(hub, HELLO | {"lease": lease}, Told(), ADA)
    while not relay._ready:
        assert select.select([relay.fileno()], [], [], 60)[0]
        relay.readable()
    return relay


def test_it_is_the_same_clients_and_holds_nothing(pool: WorkerPool) -> None:
    for blob in ("first", "second"):
        paste = ["paste", 1, 0, blob, 0, NBYTES]
        worker = used(pool, ADA, ["allocate", 1, NBYTES], paste, ["fence"], blob=blob)
        assert worker.board.device_bytes == NBYTES
        assert f"tapml-{blob}" in shared_memory(worker)
        assert pool.keep(ADA, worker)
        wait_for(lambda: kept(pool))
        # Of a session that is over it has neither blobs nor rings: they would add up.
        assert shared_memory(worker) == ["tapml-board", "tapml-down", "tapml-up"]
    other = used(pool, BOB, ["fence"])
    assert other.pid != worker.pid
    # The handle is free again: nothing of the last session is there.
    again = used(pool, ADA, ["read", 1, 0, 4])
    assert again.pid == worker.pid and again.board.device_bytes == 0
    frame = again.pipe.next()
    assert frame is not None and b"no buffer has the handle" in frame.packed
    # Its session has failed: such a worker ends.
    if not pool.keep(ADA, again):
        again.let_go()
    wait_for(lambda: not again.alive())
    assert not kept(pool)
    other.let_go()


@pytest.mark.parametrize("identity", ["loopback", "lease:loopback"])
def test_who_has_shown_no_secret_gets_a_new_one(pool: WorkerPool, identity: str) -> None:
    worker = taken(pool, identity)
    assert not pool.keep(identity, worker)
    worker.let_go()


def test_they_are_bounded_in_number_and_time_and_end_with_the_pool(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "KEPT_WORKERS", 1)
    first, second = used(pool, ADA, ["fence"]), used(pool, BOB, ["fence"])
    assert pool.keep(ADA, first)
    wait_for(lambda: kept(pool))
    assert pool.keep(BOB, second)
    wait_for(lambda: not first.alive())
    assert list(pool._kept) == [BOB]
    monkeypatch.setattr(worker_process, "KEPT_SECONDS", 0.0)
    third = used(pool, ADA, ["fence"])
    assert pool.keep(ADA, third)
    wait_for(lambda: not third.alive())
    pool.drop()
    wait_for(lambda: not second.alive())


def test_our_own_client_finds_it_over_both_bindings(hub: Hub, tmp_path: Path) -> None:
    device, ada = make_pair("device"), make_pair("ada")
    admit(tmp_path / "clients", "ada", ada.public)
    curve = ServerCurve(device, AllowList(tmp_path / "clients"))
    zeromq = ZmqFront(hub, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*", curve=curve)
    websocket = WebSocketFront(hub, "127.0.0.1", 0, tokens=OneToken("secret"))
    stopped = threading.Event()
    serving = threading.Thread(target=zeromq.run, args=(stopped.is_set,))
    serving.start()
    keys = Credentials(keys=ada, server_key=device.public)
    token = Credentials(token="secret")
    try:
        both = ((zeromq.address, keys), (websocket.address, token))
        for expected, (address, credentials) in enumerate(both, 1):
            pids: list[list[int]] = []
            for _ in range(2):
                with connect(address, credentials=credentials) as client:
                    client.fence()
                    pids.append([relay.pid for relay in hub._relays.values()])
                wait_for(partial(has_kept, hub, expected), seconds=10)
            assert pids[0] == pids[1] and len(pids[0]) == 1
    finally:
        stopped.set()
        serving.join()
        websocket.close()


def test_nothing_is_kept_beyond_a_lease_nor_into_one(hub: Hub) -> None:
    """However soon the lease is given back after its last session."""
    before = session(hub)
    before.control({"type": "goodbye"})
    wait_for(lambda: kept(hub._pool))
    lease = HeldLease("1", "a token", identity=ADA, label="ada")
    hub.lend(lease)
    assert not kept(hub._pool)
    under = session(hub, lease.token)
    assert under.pid != before.pid
    under.control({"type": "goodbye"})
    hub.take_back(lease.id)
    wait_for(lambda: kept(hub._pool) or not Path(f"/proc/{under.pid}").exists())
    assert not kept(hub._pool)
