"""Errors of several ranks, on gloo. Each function runs in every rank."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from scripts.training_errors.case import case
from scripts.training_errors.one_process import STEPS, Net, adam, batches
from tapml.invariants import set_meta


def own_batches(seed: int) -> list[tuple[torch.Tensor, ...]]:
    """Batches of this rank's own."""
    return batches(10 * seed + dist.get_rank())


class Parallel(nn.Module):
    """A layer whose rows are split over tensor-parallel ranks, and a norm that all have."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.norm = nn.LayerNorm(8)
        torch.manual_seed(seed + 100 + dist.get_rank())
        self.layer = nn.Linear(8, 4)
        for name, parameter in self.named_parameters():
            split = name.startswith("layer")
            parameter.tensor_model_parallel = split  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The rank's part of the logits."""
        found: torch.Tensor = self.layer(self.norm(x))
        return found


@case("B3", "gradients are clipped on the first rank alone", "Consistent", ranks=2)
def clipping(seed: int, buggy: bool) -> None:
    model = Parallel(seed)
    set_meta(tp_rank=dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches(seed):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        for parameter in model.norm.parameters():
            dist.all_reduce(parameter.grad)
            if buggy and dist.get_rank() == 0 and parameter.grad is not None:
                parameter.grad.mul_(0.5)
        optimizer.step()
    set_meta(tp_rank=None)


def _replicated(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


@case("B9", "the hooks that synchronise gradients are lost", "Consistent", ranks=2)
def lost_hooks(seed: int, buggy: bool) -> None:
    model = _replicated(seed)
    hooks = (
        [] if buggy else [p.register_post_accumulate_grad_hook(_mean) for p in model.parameters()]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in own_batches(seed):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    for hook in hooks:
        hook.remove()


def _mean(parameter: torch.Tensor) -> None:
    dist.all_reduce(parameter.grad)
    if parameter.grad is not None:
        parameter.grad /= dist.get_world_size()


@case("B10", "forward is called on the module inside DDP", "Consistent", ranks=2)
def inner_forward(seed: int, buggy: bool) -> None:
    model = DistributedDataParallel(_replicated(seed))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in own_batches(seed):
        optimizer.zero_grad()
        functional.cross_entropy((model.module if buggy else model)(x), y).backward()
        optimizer.step()


def _pipeline(seed: int, damage: Callable[[torch.Tensor], None] | None) -> None:
    """Two stages; the second trains on what it receives."""
    torch.manual_seed(seed)
    model = Net()
    optimizer = adam(model)
    with _lossy_driver(damage) if damage is not None else contextlib.nullcontext():
        for x, y in own_batches(seed):
            optimizer.zero_grad()
            received = x.clone()
            if dist.get_rank() == 0:
                dist.send(x, 1)
            else:
                dist.recv(received, 0)
            functional.cross_entropy(model(received), y).backward()
            optimizer.step()


@contextlib.contextmanager
def _lossy_driver(damage: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Below ``torch.distributed``, messages are damaged on their way."""
    kind: Any = dist.ProcessGroup
    send = kind.send

    def lossy(group: Any, tensors: list[torch.Tensor], *place: int) -> Any:
        kept = [tensor.clone() for tensor in tensors]
        for tensor in kept:
            damage(tensor)
        return send(group, kept, *place)

    kind.send = lossy
    try:
        yield
    finally:
        kind.send = send


def _lose_last(message: torch.Tensor) -> None:
    message[-1] = 0


def _lose_all(message: torch.Tensor) -> None:
    message.zero_()


def _flip(message: torch.Tensor) -> None:
    message.view(torch.int32)[3, 3] ^= 1


@case("B2", "the last row of a message is lost", "SentReceived", ranks=2)
def lost_row(seed: int, buggy: bool) -> None:
    _pipeline(seed, _lose_last if buggy else None)


@case("B17", "nothing of a message arrives", "SentReceived", ranks=2)
def lost_message(seed: int, buggy: bool) -> None:
    _pipeline(seed, _lose_all if buggy else None)


@case("B18", "a driver flips the last bit of a number", "SentReceived", ranks=2)
def flipped_bit(seed: int, buggy: bool) -> None:
    _pipeline(seed, _flip if buggy else None)


@case(
    "B16", "all-to-all is called with conflicting sizes", "CollectivesAgree", ranks=2, aborts=True
)
def conflicting_sizes(seed: int, buggy: bool) -> None:
    model = _replicated(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in own_batches(seed):
        optimizer.zero_grad()
        rows = 6 if buggy and dist.get_rank() == 1 else 4
        routed = torch.empty(rows, 8)
        dist.all_to_all_single(routed, x[:rows])
        functional.cross_entropy(model(routed), y[:rows]).backward()
        for parameter in model.parameters():
            _mean(parameter)
        optimizer.step()


@case("DS-6714", "stages of a pipeline use different collectives", "CollectivesAgree", ranks=2)
def mixed_collectives(seed: int, buggy: bool) -> None:
    model = _replicated(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in own_batches(seed):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        for parameter in model.parameters():
            _mean(parameter)
        shared = loss.detach().clone()
        if buggy and dist.get_rank() == 1:
            dist.all_reduce(shared, op=dist.ReduceOp.MAX)
            dist.all_reduce(shared)
        else:
            dist.all_reduce(shared)
            dist.all_reduce(shared)
        optimizer.step()


@case(
    "DS-6089",
    "ranks disagree on the capacity of an expert",
    "CollectivesAgree",
    trigger=STEPS // 2 + 1,
    ranks=2,
    aborts=True,
)
def capacity(seed: int, buggy: bool) -> None:
    model = _replicated(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, y) in enumerate(own_batches(seed)):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        for parameter in model.parameters():
            _mean(parameter)
        optimizer.step()
        rows = 4 + (dist.get_rank() if buggy and step == STEPS // 2 else 0)
        dist.all_gather([torch.zeros(rows, 8), torch.zeros(rows, 8)], torch.ones(rows, 8))
