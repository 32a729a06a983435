"""A job may have several optimizers, each of which steps when its own gradients are there."""

from __future__ import annotations

import torch
from torch import nn

from tapml.distributed.optimizers import before_steps, map_optimizers, optimizers_in
from tests.distributed.conftest import CheckJob


def test_schedulers_beside_an_optimizer_are_no_optimizers() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)

    assert optimizers_in((optimizer, scheduler)) == [optimizer]
    assert optimizers_in({"a": [optimizer]}) == [optimizer]
    assert map_optimizers((optimizer, scheduler), lambda _: 1) == (1, scheduler)


def test_a_step_leaves_the_parameters_of_other_optimizers_alone() -> None:
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    optimizers = [torch.optim.SGD(each.parameters()) for each in (first, second)]
    told: list[frozenset[int]] = []

    assert before_steps(optimizers, told.append) == []
    for each in optimizers:
        each.step()

    assert told == [frozenset(map(id, each.parameters())) for each in (second, first)]


def test_an_optimizer_without_hooks_is_told() -> None:
    class Own:
        def step(self) -> None: ...

    assert before_steps(Own(), print) == ["Own"]


_TWO = """
def model():
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
def optimizer(model):
    parameters = list(model.parameters())
    return torch.optim.AdamW(parameters[:2]), torch.optim.SGD(parameters[2:], 0.1, momentum=0.9)
def step(model, batch, optimizer):
    for each in optimizer:
        each.zero_grad()
    model(batch).square().mean().backward()
    for each in optimizer:
        each.step()
"""


def test_two_optimizers_are_the_same_on_ranks(check_job: CheckJob) -> None:
    found = check_job(_TWO, worlds=[2], engines=["ddp", "zero"])

    assert [str(each.outcome) for each in found.results] == ["equal"] * 2
    assert not found.results[0].not_compared


_IN_TURN = """
import torch.distributed as dist
def model():
    return nn.ModuleDict({"maker": nn.Linear(4, 4), "judge": nn.Linear(4, 1)})
def distribute(model, rank, world):
    def average(parameter):
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(world)
    def add(parameter):
        dist.all_reduce(parameter.grad)
    for name, parameter in model.named_parameters():
        hook = add if name.startswith("maker") else average
        parameter.register_post_accumulate_grad_hook(hook)
    return model
def optimizer(model):
    return {name: torch.optim.SGD(part.parameters(), lr=0.1) for name, part in model.items()}
def step(model, batch, optimizer):
    for name, sign in (("judge", 1.0), ("maker", -1.0)):
        model.zero_grad()
        made = model["maker"](batch)
        made = made if name == "maker" else made.detach()
        nn.functional.softplus(sign * model["judge"](made)).mean().backward()
        optimizer[name].step()
"""


def test_a_mistake_of_the_optimizer_that_steps_second_is_named(check_job: CheckJob) -> None:
    """Its gradients are of what the first one's step has made of the weights."""
    (found,) = check_job(_IN_TURN, worlds=[2], engines=["own"]).results

    assert found.tensor.startswith("maker.")
    assert "gradients are summed over the ranks, not averaged; only for maker." in found.mistake
