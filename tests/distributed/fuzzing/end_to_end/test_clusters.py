"""Findings of generated models: found, put together, resumed, shrunk, fixed, shown by a script."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tapml.distributed
from tapml.distributed.fuzzing.campaign import Campaign, ModelResult, read_genome, run_campaign
from tapml.distributed.fuzzing.genome import Network
from tapml.distributed.fuzzing.rerunning import rerun
from tapml.isolate.pool import Pool
from tapml_targets.errors import InputError

_SUMMED = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
plain = DistributedDataParallel.__init__
def summing(self, *arguments, **named):
    plain(self, *arguments, **named)
    def hook(state, bucket):
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])
    self.register_comm_hook(None, hook)
DistributedDataParallel.__init__ = summing
"""


def test_a_bug_of_a_library_is_one_cluster_that_a_fix_resolves(
    warm_pool: Pool, tmp_path: Path
) -> None:
    bug, fix = tmp_path / "bug.py", tmp_path / "fix.py"
    bug.write_text(_SUMMED)
    fix.write_text("DistributedDataParallel.__init__ = plain\n")
    folder = tmp_path / "found"
    fuzzed = tapml.distributed.fuzz(
        folder,
        engines=["ddp"],
        worlds=[2],
        kinds=["chain"],
        models=2,
        samples=4,
        patch=bug,
        trials=6,
        pool=warm_pool,
    )
    (found,) = fuzzed.clusters

    assert fuzzed.exit_code == 1
    assert found.mistake == "gradients are summed over the ranks, not averaged"
    assert len(found.findings) == 2
    assert found.published
    place = folder / "clusters" / found.name
    smallest, first = read_genome(place), read_genome(folder / "models" / "chain-0-0")
    assert isinstance(smallest, Network) and isinstance(first, Network)
    assert len(smallest.genes) < len(first.genes)
    page = fuzzed.page.read_text()
    assert all(each.name in page for each in fuzzed.models) and found.mistake in page
    assert "exits with 1 while the bug is there" in (place / "report.html").read_text()
    fixed = tapml.distributed.rerun(place, fix, pool=warm_pool)
    assert (fixed.resolved, fixed.remaining, fixed.changed) == (2, 0, 0)
    assert "tapml" not in (place / "script.py").read_text()
    shown = subprocess.run(
        [sys.executable, place / "script.py"], check=False, capture_output=True, text=True
    )
    assert (shown.returncode, shown.stdout.splitlines()[-1]) == (1, "different"), shown.stderr
    assert re.search(r"rank 0: \S+ is off by ", shown.stdout)


def test_models_whose_results_are_kept_are_not_run_again(warm_pool: Pool, tmp_path: Path) -> None:
    campaign = Campaign(engines=("ddp",), worlds=(2,), kinds=("chain",), models=1, samples=4)
    first = run_campaign(tmp_path, campaign, pool=warm_pool)
    kept = (tmp_path / "models" / "chain-0-0" / "result.json").stat().st_mtime_ns

    again: list[ModelResult] = run_campaign(tmp_path, campaign, pool=warm_pool)

    assert again == first
    assert (tmp_path / "models" / "chain-0-0" / "result.json").stat().st_mtime_ns == kept


def test_a_folder_without_a_cluster_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no cluster"):
        rerun(tmp_path, tmp_path / "fix.py")
