"""Ranks that record themselves: compared with one process, whatever started them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tapml.distributed
from tapml.cli.main import main
from tapml.distributed.results import Check, Outcome
from tapml_targets.errors import InputError
from tests.distributed.conftest import CheckJob

# A job records its own ranks: those of a check are ranks like any other.
_RECORDED = """
import os
import torch.distributed as dist
import tapml.distributed
from torch.nn.parallel import DistributedDataParallel

def model():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

def part(batch, rank, world):
    return batch[rank::world]

def distribute(model, rank, world):
    wrapped = DistributedDataParallel(model)
    if {summed}:
        wrapped.register_comm_hook(None, summed)
    return wrapped

def summed(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])

def optimizer(model):
    made = torch.optim.AdamW(model.parameters(), lr=0.01)
    form = str(torch.get_default_dtype()).removeprefix("torch.")
    folder = FOLDER + str(dist.get_world_size()) + form
    if form != "float64":
        # One device runs twice in float32, at once.
        folder += f"-{os.getpid()}"
    tapml.distributed.record(folder, model, made, steps=2)
    return made
"""


@pytest.fixture
def recorded(check_job: CheckJob, tmp_path: Path) -> Callable[[bool], list[Path]]:
    """Recordings in float64 of one process and of two ranks, whose gradients may be summed."""

    def record(summed: bool) -> list[Path]:
        base = tmp_path / f"{summed}-"
        code = _RECORDED.replace("{summed}", str(summed)) + f"\nFOLDER = {str(base)!r}\n"
        check_job(code, worlds=[2], engines=["own"], steps=2)
        return [Path(f"{base}{world}float64") for world in (1, 2)]

    return record


def test_two_ranks_that_interleave_their_samples_equal_one_process(
    recorded: Callable[[bool], list[Path]],
    tapml_distributed_compare: Callable[..., Check],
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, two = recorded(False)

    found = tapml_distributed_compare(one, two)
    assert found.exit_code == 0
    (result,) = found.results
    assert (result.outcome, result.precision) == (Outcome.EQUAL, "float64")
    assert result.not_compared == ()
    assert result.compared == {"start": 4, "forward": 8, "gradient": 8, "state": 24, "update": 8}
    assert main(["distributed", "compare", str(one), str(two)]) == 0
    assert "1 equal" in capsys.readouterr().out

    shutil.rmtree(two / "rank-1")
    with pytest.raises(InputError, match="its rank 1 ended before"):
        tapml.distributed.compare(one, two)
    with pytest.raises(InputError, match="at least one of many"):
        tapml.distributed.compare(one)


def test_the_mistake_is_named_from_what_the_ranks_had_before_the_reduction(
    recorded: Callable[[bool], list[Path]],
    tapml_distributed_compare: Callable[..., Check],
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, _ = recorded(False)
    _, two = recorded(True)

    assert main(["distributed", "compare", str(one), str(two), "--json"]) == 1
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert (result["phase"], result["tensor"]) == ("gradient", "2.bias")
    assert result["ratio"] == pytest.approx(2)
    assert result["mistake"] == "gradients are summed over the ranks, not averaged"
    with pytest.raises(pytest.fail.Exception, match="gradients are summed"):
        tapml_distributed_compare(one, two)


def test_a_script_that_draws_its_own_weights_takes_those_of_a_recording(tmp_path: Path) -> None:
    def train(folder: str, start: Path | None = None) -> None:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recording = tapml.distributed.record(tmp_path / folder, model, optimizer, start=start)
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        assert recording.done

    train("one")
    train("other")
    train("same", start=tmp_path / "one")

    other, same = tapml.distributed.compare(
        *(tmp_path / n for n in ("one", "other", "same"))
    ).results
    assert (other.outcome, other.phase) == (Outcome.INCONSISTENT, "start")
    assert same.outcome == Outcome.EQUAL


def test_what_cannot_be_recorded_says_why(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(InputError, match=r"must be a torch\.optim\.Optimizer, got object"):
        tapml.distributed.record(tmp_path, model, object())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrong: list[Any] = [3, "model"]
    with pytest.raises(InputError, match="folder must be a path, got 3"):
        tapml.distributed.record(wrong[0], model, optimizer)
    with pytest.raises(InputError, match=r"model must be a torch\.nn\.Module, got str"):
        tapml.distributed.record(tmp_path, wrong[1], optimizer)
    with pytest.raises(InputError, match="steps must be a whole number of at least 1"):
        tapml.distributed.record(tmp_path, model, optimizer, steps=0)
    with pytest.raises(InputError, match="is no recording"):
        tapml.distributed.record(tmp_path, model, optimizer, start=tmp_path / "none")
