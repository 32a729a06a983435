"""Bugs planted in one job are found and named; without them the check is silent."""

from __future__ import annotations

import pytest

from tapml.distributed.results import Outcome
from tests.distributed.conftest import CheckJob


def test_a_job_without_a_fault_is_equal_on_every_world(check_planted: CheckJob) -> None:
    found = check_planted("", steps=2, worlds=[1, 2, 4])

    assert [each.outcome for each in found.results] == [Outcome.EQUAL] * 3
    assert found.exit_code == 0
    assert found.facts.twin
    for each in found.results:
        assert set(each.compared) == {
            "start",
            "forward",
            "gradient",
            "state",
            "update",
            "prediction",
        }
        assert each.published == "equal"
        assert each.not_compared == ()


@pytest.mark.parametrize(
    ("fault", "phase", "tensor", "ranks", "mistake"),
    [
        ("sum", "gradient", "outer.bias", (0, 1), "summed over the ranks, not averaged"),
        ("twice", "gradient", "outer.bias", (0, 1), "divided by the number of ranks twice"),
        ("own", "gradient", "outer.bias", (0, 1), "not reduced: each rank keeps its own"),
        ("left out", "gradient", "outer.weight", (0, 1), "keeps its own; only for outer.weight"),
        ("rounded", "gradient", "outer.bias", (0, 1), "rounded to bfloat16"),
        ("clipped", "gradient", "outer.bias", (0, 1), "a factor of its own before the reduction"),
        ("frozen moves", "gradient", "inner.bias", (0, 1), "inner.bias is frozen on one device"),
        ("adrift", "start", "outer.bias", (1,), "the replica of rank 1 is adrift"),
        ("learning rate", "update", "inner.weight", (0, 1), "learning rate is multiplied"),
        ("not updated", "state", "inner.weight momentum_buffer", (0, 1), "is not updated"),
    ],
)
def test_a_fault_is_found_and_named(
    check_planted: CheckJob,
    fault: str,
    phase: str,
    tensor: str,
    ranks: tuple[int, ...],
    mistake: str,
) -> None:
    found = check_planted(fault, worlds=[2])

    (result,) = found.results
    assert found.exit_code == 1
    assert result.outcome is Outcome.INCONSISTENT
    assert (result.phase, result.tensor, result.ranks) == (phase, tensor, ranks)
    assert mistake in result.mistake
    assert result.remedy


def test_a_sum_over_four_ranks_is_four_times_the_mean(check_planted: CheckJob) -> None:
    one, four = check_planted("sum", steps=2, worlds=[1, 4]).results

    assert one.outcome is Outcome.EQUAL
    assert four.ratio == pytest.approx(4, rel=1e-12)
    assert four.triggers == ("world",)
    assert four.place is not None
    assert four.place.actual == pytest.approx(4 * four.place.expected)


def test_a_learning_rate_is_named_by_the_first_step_that_it_changes(
    check_planted: CheckJob,
) -> None:
    (result,) = check_planted("learning rate", steps=2, worlds=[2]).results

    assert (result.phase, result.step) == ("update", 1)
    assert "learning rate is multiplied" in result.mistake


def test_the_paper_s_oracle_misses_a_rounded_reduction(check_planted: CheckJob) -> None:
    (result,) = check_planted("rounded", worlds=[2]).results

    assert result.outcome is Outcome.INCONSISTENT
    assert result.published == "equal"


def test_a_hook_that_moves_the_weights_once_more_is_named(check_job: CheckJob) -> None:
    code = """
import torch.distributed as dist
def optimizer(model):
    made = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    def again(*_):
        with torch.no_grad():
            for each in model.parameters():
                each.sub_(0.1 * each.grad)
    if dist.get_world_size() > 1:
        made.register_step_post_hook(again)
    return made
"""
    (result,) = check_job(code, worlds=[2], engines=["ddp"]).results

    assert (result.outcome, result.phase) == (Outcome.INCONSISTENT, "update")
    assert "the weights move by -0.1 times their gradients besides" in result.mistake


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("self.seen.lerp_(x.mean(0), 0.1)", "nothing averages it"),
        ("self.seen.add_((x > 0).sum(0))", "nothing sums it"),
    ],
)
def test_a_buffer_of_each_rank_s_own_samples_is_named(
    check_job: CheckJob, change: str, said: str
) -> None:
    found = check_job(
        f"""
class Seeing(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
        self.register_buffer("seen", torch.zeros(4))
    def forward(self, x):
        with torch.no_grad():
            {change}
        return super().forward(x)
model = Seeing
def distribute(model, rank, world):
    return nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
""",
        worlds=[2],
        engines=["own"],
    )
    (result,) = found.results
    assert (result.tensor, result.ranks) == ("seen", (0, 1))
    assert result.mistake == f"seen is made of each rank's own samples, and {said}"
