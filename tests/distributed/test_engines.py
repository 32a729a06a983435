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


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("ddp", {"accumulation": ["2"], "reducer": ["bucket_view"], "hook": ["allreduce"]}),
        ("fsdp2", {"accumulation": ["2"], "activations": ["recomputed"], "saved_by": ["1"]}),
    ],
)
def test_the_engine_s_own_parameters_change_nothing(
    check_job: CheckJob, engine: str, options: dict[str, list[str]]
) -> None:
    (found,) = check_job(_ADAM, engines=[engine], worlds=[2], options=options).results

    assert found.outcome == "equal", found.reason
    assert set(found.setting.options) == set(options)
    assert {"forward", "gradient", "state", "update"} <= found.compared.keys()


def test_a_checkpoint_of_other_ranks_holds_the_optimizer_s_state(check_job: CheckJob) -> None:
    options = {"resumed_by": ["1"]}
    (found,) = check_job(_ADAM, engines=["fsdp2"], worlds=[2], options=options, steps=2).results

    assert found.outcome == "equal", found.reason
    assert found.compared["state"] == 2 * 4 * 3


def test_an_embedding_cut_by_rows_equals_one_device(check_job: CheckJob) -> None:
    code = """
def model():
    return nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))
def batch():
    return torch.randint(8, (12,))
"""
    (found,) = check_job(_ADAM + code, engines=["tensor_parallel"], worlds=[2]).results

    assert found.outcome == "equal", found.reason
    assert found.compared["gradient"] == 5
    # The embedding and the second Linear are partial sums, the first Linear is cut by outputs.
    assert (found.compared["forward"], found.not_compared) == (5, ())


def test_a_wrong_shard_of_a_hidden_state_shows_in_the_sum_that_takes_it(
    check_job: CheckJob,
) -> None:
    code = """
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

def distribute(model, rank, world):
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (world,)), plan)
    model[0].register_forward_hook(lambda *it: it[-1] * (1 + 0.1 * rank))
    return model

def part(batch, rank, world):
    return batch
"""
    (found,) = check_job(_ADAM + code, worlds=[2]).results

    assert (found.outcome, found.first_wrong) == ("inconsistent", "output of 2")
    assert found.ranks == (0, 1)
    assert found.not_compared == (
        "1: a rank has the shape (8, 4), one device (8, 8): no DTensor says where the part lies",
    )


def test_sequence_parallel_norms_equal_one_device(check_job: CheckJob) -> None:
    code = """
def model():
    return nn.Sequential(
        nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.RMSNorm(8), nn.Linear(8, 4)
    )
def batch():
    return torch.randn(4, 6, 4)
"""
    options = {"sequence": ["sharded"]}
    (found,) = check_job(
        _ADAM + code, engines=["tensor_parallel"], worlds=[2], options=options
    ).results

    assert found.outcome == "equal", found.reason
    assert found.compared["gradient"] == 9
    assert (found.compared["forward"], found.not_compared) == (6, ())


def test_a_layer_cut_by_inputs_whose_parts_nobody_sums_is_named(check_job: CheckJob) -> None:
    code = """
class Cut(nn.Linear):
    place, world = 0, 1
    def forward(self, x):
        size = self.in_features // self.world
        own = slice(self.place * size, (self.place + 1) * size)
        return nn.functional.linear(x[..., own], self.weight[:, own])

def model():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), Cut(8, 4, bias=False))

def part(batch, rank, world):
    return batch

def distribute(model, rank, world):
    model[2].place, model[2].world = rank, world
    return model
"""
    (found,) = check_job(_ADAM + code, worlds=[2]).results

    assert found.first_wrong == "output of 2"
    assert found.mistake == (
        "the output of 2 is a part of a sum on each rank, and nothing sums the parts"
    )


def test_stages_of_a_pipeline_equal_one_device(check_job: CheckJob) -> None:
    code = """
def inputs(batch):
    return batch

def loss(output, batch):
    return output.square().mean()
"""
    options = {"schedule": ["gpipe", "1f1b"], "microbatches": ["2"]}
    found = check_job(_ADAM + code, engines=["pipeline"], worlds=[2], options=options)

    assert [str(each.outcome) for each in found.results] == ["equal", "equal"]
    for each in found.results:
        assert {"start", "gradient", "state", "update"} <= each.compared.keys()


def test_a_hook_that_rounds_is_named(check_job: CheckJob) -> None:
    (found,) = check_job(_ADAM, engines=["ddp"], worlds=[2], options={"hook": ["fp16"]}).results

    assert found.outcome == "inconsistent"
    assert found.mistake == "gradients are rounded to float16 on the way"


def test_parameters_that_trigger_a_finding_are_found_by_flipping_one_at_a_time(
    check_job: CheckJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"hook": ("none", "fp16"), "accumulation": ("1", "2")}
    monkeypatch.setattr("tapml.distributed.engines.ddp.settings.OPTIONS", few)
    options = {"hook": ["fp16"], "accumulation": ["1"]}
    found = check_job(_ADAM, engines=["ddp"], worlds=[2], options=options, flip=True)

    first, *flipped = found.results
    assert first.triggers == ("hook",)
    assert [first.setting.differs_in(each.setting) for each in flipped] == [
        ["hook"],
        ["accumulation"],
    ]


def test_two_settings_are_compared_with_each_other(check_job: CheckJob) -> None:
    code = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def distribute(model, rank, world):
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(None, summed)
    return wrapped

def summed(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
"""
    found = check_job(_ADAM + code, engines=["ddp", "fsdp2", "own"], worlds=[2], pairs=True)

    pairs = {(each.first, each.second): each for each in found.pairs}
    assert pairs["ddp x 2", "fsdp2 x 2"].equal
    for other in ("ddp x 2", "fsdp2 x 2"):
        pair = pairs[other, "own x 2"]
        assert (pair.equal, pair.phase, pair.differs_in) == (False, "gradient", ("engine",))
        # The last layer's gradient is the first that backward computes.
        assert pair.tensor == "2.bias"
        assert pair.ratio == pytest.approx(2)


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
