"""When a deadline looks at what a session has sent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tapml_rpc import wire
from tapml_rpc.supervisor.relay import Deadline
from tapml_rpc.supervisor.worker_process import WorkerProcess
from tapml_targets.ranking import find_device


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    worker = WorkerProcess(find_device("cpu"), allow_native=False)
    worker.wait_until_open()
    yield worker
    worker.pipe.close()
    worker.end(kill=True)


def test_a_header_is_not_unpacked_before_the_deadline(
    worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline = Deadline(10.0, worker)
    asked: list[object] = []

    def name(*given: object) -> str:
        asked.append(given)
        return "fence"

    monkeypatch.setattr(worker.board.last, "name", name)
    assert deadline.check(110.0, 1, 0, 100.0) is None and not asked
    assert deadline.check(110.5, 1, 0, 100.0) is None and asked


def test_a_load_has_ten_times_as_long(worker: WorkerProcess) -> None:
    worker.board.last.add(1, wire.pack({"commands": [["load", 1, "digest"], ["fence"]]}))
    deadline = Deadline(10.0, worker)
    for index, name, late in ((0, "load", 200.5), (1, "fence", 110.5)):
        assert deadline.check(late - 1, 1, index, 100.0) is None
        # It asks the worker for its stack first, and then gives it some time.
        assert deadline.check(late, 1, index, 100.0) is None
        over = deadline.check(late + 5, 1, index, 100.0)
        assert over is not None and over[1].startswith(name)
        deadline.rest()
