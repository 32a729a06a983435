"""A worker of Dask checks generated models, and the folder keeps what it found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tapml.distributed.fuzzing.campaign import Campaign, run_campaign


@pytest.fixture
def scheduler() -> Iterator[str]:
    """A scheduler with one worker process, on loopback."""
    script = (
        "from distributed import LocalCluster\n"
        "if __name__ == '__main__':\n"
        "    with LocalCluster(n_workers=1, dashboard_address=None) as made:\n"
        "        print(made.scheduler_address, flush=True)\n"
        "        input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"},
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"tcp://127\.0\.0\.1:\d+", address), address
        yield address
        process.stdin.close()


def test_a_worker_checks_models_and_the_folder_resumes(scheduler: str, tmp_path: Path) -> None:
    campaign = Campaign(engines=("ddp",), worlds=(2,), kinds=("chain",), models=1)

    (found,) = run_campaign(tmp_path, campaign, workers=scheduler)
    assert found.check is not None, found.failure
    assert [str(each.outcome) for each in found.check.results] == ["equal"]

    (again,) = run_campaign(tmp_path, campaign, workers="tcp://127.0.0.1:1")
    assert again.check == found.check
