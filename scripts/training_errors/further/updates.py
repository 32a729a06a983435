"""Optimizers and schedules: when a step is taken, and how large."""

from __future__ import annotations

import torch
from torch.nn import functional

from scripts.training_errors.further.program import STEPS, batches, net, program, step


@program("accumulate-every-clear", "gradients that should add up are cleared for each part")
def _accumulate(seed: int, buggy: bool) -> None:
    data = batches(seed, 2 * STEPS)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number, (x, y) in enumerate(data):
        if buggy or number % 2 == 0:
            optimizer.zero_grad()
        (functional.cross_entropy(model(x), y) / 2).backward()
        if number % 2:
            optimizer.step()


@program("lbfgs-no-clear", "the closure of LBFGS does not clear gradients")
def _lbfgs(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    for x, y in data:

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            if not buggy:
                optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)


@program("one-cycle-epochs", "a OneCycle schedule moves once an epoch instead of each step")
def _one_cycle(seed: int, buggy: bool) -> None:
    data = batches(seed, 4)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12)
    for _ in range(3):
        for x, y in data:
            step(optimizer, functional.cross_entropy(model(x), y))
            if not buggy:
                schedule.step()
        if buggy:
            schedule.step()


@program("cosine-other-optimizer", "a cosine schedule moves an optimizer that is not used")
def _cosine(seed: int, buggy: bool) -> None:
    data = batches(seed)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
        other if buggy else optimizer, T_0=3
    )
    for x, y in data:
        step(optimizer, functional.cross_entropy(model(x), y))
        schedule.step()
