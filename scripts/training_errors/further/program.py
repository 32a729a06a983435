"""What the programs have in common: their register, a model, data and a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import nn

STEPS: Final = 8
FURTHER: Final[dict[str, tuple[str, Callable[[int, bool], None]]]] = {}

_Run = Callable[[int, bool], None]


def program(name: str, says: str) -> Callable[[_Run], _Run]:
    """Register a program under its name, with what is wrong if it is buggy."""

    def register(run: _Run) -> _Run:
        FURTHER[name] = says, run
        return run

    return register


class Net(nn.Sequential):
    """A model of a class of its own, as a script has it."""


class Encoder(nn.Sequential):
    """Another one."""


def rows_of(seed: int) -> int:
    """Rows of a batch; a twin has more than the runs that were learned from."""
    return 12 if seed == 3 else 8


def net(inside: int = 8, outside: int = 4, width: int = 16) -> nn.Sequential:
    """A network with one hidden layer."""
    return Net(nn.Linear(inside, width), nn.Tanh(), nn.Linear(width, outside))


def batches(seed: int, count: int = STEPS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs of 8 features, and their classes out of 4; PyTorch's generator is seeded."""
    torch.manual_seed(seed)
    rows = rows_of(seed)
    return [(torch.randn(rows, 8), torch.randint(0, 4, (rows,))) for _ in range(count)]


def step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """Clear the gradients, make those of a loss, and move the parameters."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
