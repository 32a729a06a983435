"""TorchRec as an engine: its shards are compared where they lie, its faults are found and named."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tapml.distributed.results import Outcome
from tests.distributed.conftest import CheckJob

pytestmark = pytest.mark.skipif(
    find_spec("torchrec") is None or find_spec("fbgemm_gpu") is None,
    reason="torchrec and fbgemm-gpu-cpu are not installed (docs/distributed.md)",
)
_JOB = """
from tests.distributed.jobs import recommendation
from tests.distributed.jobs.recommendation import *
"""
_SUMMED = """
from torchrec.distributed.comm_ops import set_gradient_division
set_gradient_division(False)
"""
_PLANNED_BY_OTHERS = """
import torch.distributed as dist
from torchrec.distributed.planner import EmbeddingShardingPlanner
plan = EmbeddingShardingPlanner.plan
def plan_unless_first(self, *arguments):
    if dist.get_rank() == 0:
        raise RuntimeError("no plan fits")
    return plan(self, *arguments)
EmbeddingShardingPlanner.plan = plan_unless_first
"""
_DEADLINE = 300.0


def _check(check_job: CheckJob, code: str = "", **options: object) -> dict[str, tuple[str, ...]]:
    found = check_job(_JOB + code, engines=["torchrec"], deadline_seconds=_DEADLINE, **options)
    return {
        f"{each.setting.options['sharding']} x {each.setting.world}": (
            str(each.outcome),
            each.tensor,
            each.mistake,
        )
        for each in found.results
    }


def test_tables_of_a_collection_are_equal_however_they_are_sharded(check_job: CheckJob) -> None:
    found = _check(check_job, worlds=[2], options={"sharder": ["EBCS"]})

    assert len(found) == 7
    assert {outcome for outcome, _, _ in found.values()} == {Outcome.EQUAL}


def test_single_bags_are_equal_however_they_are_sharded(check_job: CheckJob) -> None:
    code = "recommendation.BAGS = True\n"
    found = _check(check_job, code, worlds=[2], options={"sharder": ["EBS"]})

    assert len(found) == 5
    assert {outcome for outcome, _, _ in found.values()} == {Outcome.EQUAL}


def test_summed_gradients_of_sharded_tables_are_named(check_job: CheckJob) -> None:
    """The paper's bug 1: data parallel tables are immune."""
    options = {"sharder": ["EBCS"], "sharding": ["RW", "CW", "DP"]}
    found = _check(check_job, _SUMMED, worlds=[2], options=options)

    assert found["DP x 2"][0] == Outcome.EQUAL
    for sharding in ("RW", "CW"):
        outcome, tensor, mistake = found[f"{sharding} x 2"]
        assert outcome == Outcome.INCONSISTENT
        assert tensor.startswith("features.tables.embedding_bags.")
        assert "gradients are summed over the ranks, not averaged" in mistake


@pytest.mark.parametrize("rate", [0.0, 1e-3])
def test_gradients_that_follow_from_small_updates_raise_no_alarm(
    check_job: CheckJob, rate: float
) -> None:
    code = f"def optimizer(model):\n    return torch.optim.SGD(model.parameters(), lr={rate})\n"
    options = {"sharder": ["EBCS"], "sharding": ["RW"]}
    found = _check(check_job, "import torch\n" + code, worlds=[2], options=options)

    assert found["RW x 2"][0] == Outcome.EQUAL


def test_means_of_tables_in_a_grid_are_sums(check_job: CheckJob) -> None:
    """A bug of TorchRec 1.8.0: it divides for ROW_WISE and TABLE_ROW_WISE, not for GRID_SHARD."""
    code = "recommendation.POOLING = 'MEAN'\n"
    options = {"sharder": ["EBCS"], "sharding": ["RW", "TWRW", "GRID"]}
    found = _check(check_job, code, worlds=[2], options=options)

    assert found["RW x 2"][0] == found["TWRW x 2"][0] == Outcome.EQUAL
    assert found["GRID x 2"][:2] == (Outcome.INCONSISTENT, "features")


def test_a_trained_model_is_served_alike_from_quantized_shards(check_job: CheckJob) -> None:
    options = {"sharder": ["quantized"], "sharding": ["TW", "CW", "RW"]}
    found = check_job(
        _JOB, engines=["torchrec"], worlds=[3], options=options, deadline_seconds=_DEADLINE
    )

    assert len(found.results) == 6 + 2 + 2
    for each in found.results:
        assert each.outcome is Outcome.EQUAL, (each.setting.name, each.reason)
        assert each.compared == {"forward": 4, "prediction": 1}


def test_a_planner_that_fails_on_one_rank_is_a_crash_of_that_rank(check_job: CheckJob) -> None:
    found = check_job(
        _JOB + _PLANNED_BY_OTHERS,
        engines=["torchrec"],
        worlds=[2],
        options={"sharder": ["EBCS"], "sharding": ["RW"]},
        deadline_seconds=_DEADLINE,
    )

    (result,) = found.results
    assert (result.outcome, result.ranks, found.exit_code) == (Outcome.CRASH, (0,), 1)
    assert "rank 0 alone raised RuntimeError: no plan fits (job.py:" in result.reason
    assert "; rank 1 goes on to broadcast(" in result.reason
