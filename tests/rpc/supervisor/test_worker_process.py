"""What a supervisor reads off a worker that says where its threads are."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tapml_rpc.supervisor.worker_process import NoWorkerYetError, WorkerPool, WorkerProcess
from tapml_targets.errors import SetupError
from tapml_targets.ranking import find_device
from tests.rpc.faults.ground import wait_for
from tests.rpc.printing import print_in
from tests.rpc.supervisor.test_hub import taken


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    worker = WorkerProcess(find_device("cpu"), allow_native=False)
    worker.wait_until_open()
    yield worker
    worker.pipe.close()
    worker.end(kill=True)


def test_a_stack_that_was_asked_for_is_whole(worker: WorkerProcess) -> None:
    worker.ask_for_stack()
    wait_for(lambda: "in _run_module_as_main" in worker.tail())
    assert worker.stack().startswith("Current thread")
    assert "cut short" not in worker.stack()


def test_a_stack_that_a_crash_broke_off_says_so(worker: WorkerProcess) -> None:
    # A driver's thread crashed while the worker's own ran on: what was told had changed.
    print_in(worker.pid, b"a driver's line\nFatal Python error: Segmentation fault\n\n  File\n")
    first, *_, last = worker.stack().splitlines()
    assert first == "Fatal Python error: Segmentation fault"
    assert last.strip() == "... cut short: the worker ended while it printed its stacks"


def test_a_start_that_failed_keeps_no_descriptors_and_is_no_later_clients_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("Cannot allocate memory")

    pool = WorkerPool(find_device("cpu"), allow_native=False)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", full)
        assert isinstance(pool.prepare().exception(), OSError)
    # A thread of an earlier test may have ended meanwhile.
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    worker = taken(pool)
    assert worker.alive()
    worker.pipe.close()
    worker.end(kill=True)
    pool.close()


def test_a_spare_that_is_to_come_starts_when_it_is_taken_and_not_in_a_closed_pool() -> None:
    pool = WorkerPool(find_device("cpu"), allow_native=False)
    spare = pool.prepare(after_seconds=3600)
    assert not spare.done()
    worker = taken(pool)
    assert worker is spare.result() and worker.alive()
    worker.pipe.close()
    worker.end(kill=True)
    # Sessions come fast: the next one starts at once, until one was ready in time.
    ready = pool.prepare(after_seconds=3600).result(60)
    assert taken(pool) is ready
    ready.pipe.close()
    ready.end(kill=True)
    never = pool.prepare(after_seconds=3600)
    pool.close()
    assert isinstance(never.exception(), SetupError)


def test_a_session_does_not_wait_for_a_spare_that_is_to_come_after_it() -> None:
    pool = WorkerPool(find_device("cpu"), allow_native=False)
    pool.prepare(after_seconds=3600)
    began = time.monotonic()
    with pytest.raises(NoWorkerYetError) as nobody:
        pool.take()
    # Taking waits for nothing, and what it asks for starts now.
    assert nobody.value.start.result(60).alive() and time.monotonic() - began < 15
    pool.close()
