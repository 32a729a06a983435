"""A client's next session gets its last one's worker, with what that built and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tapml_rpc import wire
from tapml_rpc.supervisor import worker_process
from tapml_rpc.supervisor.worker_process import WorkerPool, WorkerProcess
from tapml_rpc.welcome import Bounds
from tapml_targets.ranking import find_device
from tests.conftest import RequireDevice
from tests.rpc.tracker.trackers import wait_for

ADA, BOB = "token:ada", "token:bob"


@pytest.fixture
def pool(require_device: RequireDevice) -> Iterator[WorkerPool]:
    require_device("cpu")
    pool = WorkerPool(find_device("cpu"), allow_native=False)
    yield pool
    pool.close()


def used(pool: WorkerPool, identity: str, *commands: list[object]) -> WorkerProcess:
    """A worker that has answered a session's one batch."""
    worker = pool.take(identity)
    worker.wait_until_open()
    assert worker.pipe.next() is not None
    grant = {"type": "grant", "bounds": Bounds().to_wire(), "download_credit": 1 << 20}
    worker.pipe.send(wire.pack(grant))
    batch = {"type": "batch", "sequence": 1, "commands": list(commands)}
    worker.pipe.send(wire.pack(batch))
    wait_for(lambda: worker.pipe.receive() and worker.pipe.waiting() is not None)
    return worker


def kept(pool: WorkerPool) -> int:
    return len(pool._kept)


def test_it_is_the_same_clients_and_holds_nothing(pool: WorkerPool) -> None:
    worker = used(pool, ADA, ["allocate", 1, 4096], ["fence"])
    assert worker.board.device_bytes == 4096
    assert pool.keep(ADA, worker)
    wait_for(lambda: kept(pool))
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
    worker = pool.take(identity)
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
