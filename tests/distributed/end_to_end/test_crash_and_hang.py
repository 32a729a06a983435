"""Dead and hanging ranks: one clear line that names the culprit, and nothing is left behind."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tapml.distributed.results import Outcome
from tests.distributed.conftest import CheckJob
from tests.isolate.processes import alive, shared_memory, wait_until, wait_until_gone

_KILLED = """
import os
import signal
import torch.distributed as dist

def distribute(model, rank, world):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return model
"""
_SLEEPER = """
import os
import time
import torch.distributed as dist

def distribute(model, rank, world):
    open(MARKS + str(rank), "w").write(str(os.getpid()))
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("fault", "outcome", "ranks", "reason"),
    [
        ("crash", Outcome.CRASH, (1,), "ValueError: a bad sample (planted.py:"),
        ("death", Outcome.CRASH, (1,), "rank 1 exited with code 7"),
        ("hang", Outcome.HANG, (1,), "rank 1 does not reach all_reduce("),
        ("stopped", Outcome.HANG, (1,), "rank 1 cannot say where: stopped"),
    ],
)
def test_the_culprit_is_named_not_the_ranks_that_wait(
    check_planted: CheckJob, fault: str, outcome: Outcome, ranks: tuple[int, ...], reason: str
) -> None:
    found = check_planted(fault, worlds=[2], deadline_seconds=10)

    (result,) = found.results
    assert found.exit_code == 1
    assert (result.outcome, result.ranks) == (outcome, ranks)
    assert reason in result.reason


def test_of_mismatched_collectives_the_rank_that_stands_alone_is_named(
    check_planted: CheckJob,
) -> None:
    (result,) = check_planted("mismatch", worlds=[4], deadline_seconds=10).results

    assert result.outcome in (Outcome.HANG, Outcome.CRASH)
    assert result.ranks == (1,)
    calls = re.search(
        r"rank 0 calls all_reduce\(3\) \(planted.py:(\d+) step\); "
        r"rank 1 calls barrier \(planted.py:(\d+) step\)",
        result.reason,
    )
    assert calls is not None, result.reason
    source = (Path(__file__).parents[1] / "jobs" / "planted.py").read_text().splitlines()
    assert [source[int(line) - 1].strip() for line in calls.groups()] == [
        "dist.all_reduce(torch.zeros(3))",
        "dist.barrier()",
    ]


def test_a_killed_rank_is_a_crash(check_job: CheckJob) -> None:
    (result,) = check_job(_KILLED, worlds=[2]).results

    assert (result.outcome, result.ranks) == (Outcome.CRASH, (1,))
    assert "SIGKILL" in result.reason


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_when_the_command_is_interrupted_or_killed(
    tmp_path: Path, number: signal.Signals
) -> None:
    segments = shared_memory()
    job = tmp_path / "job.py"
    marks = tmp_path / "rank"
    plain = Path(__file__).parents[1] / "jobs" / "planted.py"
    job.write_text(f"{plain.read_text()}\nMARKS = {str(marks)!r}\n{_SLEEPER}")
    command = [sys.executable, "-m", "tapml.cli.main", "distributed", "check", str(job)]
    with subprocess.Popen(
        [*command, "--world", "2"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        written = [tmp_path / "rank0", tmp_path / "rank1"]
        wait_until(lambda: all(each.exists() and each.read_text() for each in written))
        pids = [int(each.read_text()) for each in written]
        process.send_signal(number)
        _, said = process.communicate()

    wait_until(lambda: not any(map(alive, pids)))
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert said.splitlines()[-1] == "tapml: interrupted; no partial files are left"
    wait_until_gone(segments)
