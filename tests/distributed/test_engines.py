"""Engines of PyTorch besides DDP and FSDP2: equal to one device on a job that is right."""

from __future__ import annotations

import pytest

from tapml.distributed.fuzzing.script import engine_source
from tests.distributed.conftest import CheckJob

_ADAM = """
def model():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))

def optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)
"""


@pytest.mark.parametrize(("engine", "world"), [("hsdp", 4), ("zero", 2), ("tensor_parallel", 2)])
def test_the_engine_equals_one_device(check_job: CheckJob, engine: str, world: int) -> None:
    (found,) = check_job(_ADAM, engines=[engine], worlds=[world]).results

    assert found.outcome == "equal", found.reason
    assert {"gradient", "state", "update"} <= found.compared.keys()


def test_a_bug_of_the_job_shows_where_ranks_share_their_samples(check_job: CheckJob) -> None:
    code = """
import torch.distributed as dist

def step(model, batch, optimizer):
    optimizer.zero_grad()
    (dist.get_world_size() * model(batch).square().mean()).backward()
    optimizer.step()
"""
    (found,) = check_job(_ADAM + code, engines=["tensor_parallel"], worlds=[2]).results

    assert (found.outcome, found.phase) == ("inconsistent", "gradient")
    assert found.ratio == pytest.approx(2.0)


def test_the_source_of_an_engine_for_a_script_has_no_tapml() -> None:
    for engine in ("ddp", "fsdp2", "hsdp", "zero", "tensor_parallel", "torchrec"):
        source = engine_source(engine)
        compile(source, engine, "exec")
        assert "tapml." not in source
    assert "def blocks(" in engine_source("hsdp")
    assert "def shard_optimizer(" in engine_source("zero")
