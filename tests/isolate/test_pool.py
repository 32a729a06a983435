"""A child that dies takes nothing along, and leaves a report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tapml.isolate.death import ChildDiedError
from tapml.isolate.pool import Pool
from tapml_targets.errors import InputError, LimitExceededError, TapmlError
from tests.isolate.jobs import LOCATIONS

PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(workers=2, jobs=LOCATIONS, preload=("wave",)) as opened:
        yield opened


def test_a_job_gets_its_payload_and_gives_its_result_back(pool: Pool) -> None:
    payload = {"text": "ü", "bytes": b"\x00\xff" * 1_000_000, "numbers": [1, 2.5, None]}
    assert pool.submit("echo", payload).result() == payload


def test_preloaded_modules_are_there_before_the_job_runs(pool: Pool) -> None:
    assert pool.submit("loaded", "wave").result() is True


def test_a_module_can_be_kept_out_of_the_server() -> None:
    refused = pytest.raises(TapmlError, match="wave")
    with Pool(workers=1, jobs=LOCATIONS, without=("wave",)) as pool, refused:
        pool.submit("load", "wave").result()


def test_an_error_of_the_tree_keeps_its_class_and_message(pool: Pool) -> None:
    with pytest.raises(LimitExceededError, match=r"^needs 512 threads$"):
        pool.submit("refuse", "needs 512 threads").result()


def test_any_other_error_arrives_with_its_traceback(pool: Pool) -> None:
    with pytest.raises(TapmlError, match="KeyError: 'lost'") as caught:
        pool.submit("fail", "lost").result()
    assert "raise KeyError(message)" in "".join(caught.value.__notes__)


def test_a_crash_is_reported_with_its_signal_and_last_words(pool: Pool) -> None:
    with pytest.raises(ChildDiedError, match="was ended by SIGSEGV") as caught:
        pool.submit("crash", None).result()
    assert caught.value.report.signal_number == signal.SIGSEGV
    assert "about to read address zero" in caught.value.report.stderr_tail


def test_an_exit_without_a_result_is_reported_with_its_code(pool: Pool) -> None:
    with pytest.raises(ChildDiedError, match="exited with code 7") as caught:
        pool.submit("leave", 7).result()
    assert caught.value.report.stderr_tail == "leaving"


def test_a_job_that_hangs_is_ended_at_its_deadline_and_others_go_on(pool: Pool) -> None:
    hanging = pool.submit("hang", None, deadline_seconds=0.3)
    assert pool.submit("echo", 1).result() == 1
    with pytest.raises(ChildDiedError, match=r"did not end within 0\.3 s"):
        hanging.result(PATIENCE_SECONDS)
    assert pool.submit("echo", 2).result() == 2


def test_a_deadline_also_ends_what_the_job_started(pool: Pool, tmp_path: Path) -> None:
    note = tmp_path / "pids"
    # Until it was long enough to have written the note.
    for seconds in (2, 10, 50):
        job = pool.submit("announce", str(note), deadline_seconds=seconds)
        with pytest.raises(ChildDiedError):
            job.result(2 * PATIENCE_SECONDS)
        if note.exists():
            break
    _wait_until(lambda: not any(map(_alive, map(int, note.read_text().split()))))


def test_jobs_run_side_by_side(pool: Pool, tmp_path: Path) -> None:
    names = [str(tmp_path / "one"), str(tmp_path / "other")]
    jobs = [
        pool.submit("meet", order, deadline_seconds=PATIENCE_SECONDS)
        for order in (names, names[::-1])
    ]
    assert [job.result(2 * PATIENCE_SECONDS) for job in jobs] == [True, True]


def test_an_unknown_job_is_refused_with_the_known_ones(pool: Pool) -> None:
    with pytest.raises(InputError, match="unknown job 'format-disk'; known: announce, crash"):
        pool.submit("format-disk", None)


def test_a_pool_survives_the_death_of_its_server() -> None:
    with Pool(workers=1, jobs=LOCATIONS) as pool:
        assert pool.submit("echo", 1).result() == 1
        server = _children(os.getpid(), "tapml.isolate.server")
        hanging = pool.submit("hang", None)
        for pid in server:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(ChildDiedError):
            hanging.result(PATIENCE_SECONDS)
        assert pool.submit("echo", 2).result(PATIENCE_SECONDS) == 2


def test_closing_ends_running_jobs_and_refuses_new_ones() -> None:
    pool = Pool(workers=1, jobs=LOCATIONS)
    hanging = pool.submit("hang", None)
    pool.close()
    with pytest.raises(ChildDiedError):
        hanging.result(PATIENCE_SECONDS)
    with pytest.raises(InputError, match="the pool is closed"):
        pool.submit("echo", 1)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_the_pools_process_ends(
    ending: signal.Signals, tmp_path: Path
) -> None:
    note = tmp_path / "pids"
    script = dedent(f"""
        from tapml.isolate.pool import Pool
        from tests.isolate.jobs import LOCATIONS
        with Pool(workers=1, jobs=LOCATIONS) as pool:
            pool.submit("announce", {str(note)!r}).result()
    """)
    owner = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.DEVNULL,
    )
    _wait_until(lambda: note.exists() and len(note.read_text().split()) == 2)
    pids = [int(pid) for pid in note.read_text().split()]
    owner.send_signal(ending)
    owner.wait(PATIENCE_SECONDS)
    _wait_until(lambda: not any(map(_alive, pids)))


def _wait_until(condition: Callable[[], bool]) -> None:
    end_at = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end_at, "it did not happen"
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return "State:\tZ" not in status


def _children(parent: int, command: str) -> list[int]:
    listed = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(parent)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if command in line]
