"""Small torch modules to validate."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

WIDTH = 16
WORDS = 48


class Perceptron(nn.Module):
    """Two layers and a norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Linear(WIDTH, 40)
        self.norm = nn.LayerNorm(40)
        self.second = nn.Linear(40, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        """``[rows, WIDTH]`` to the same."""
        activated: Tensor = nn.functional.silu(self.norm(self.first(hidden)))
        mixed: Tensor = self.second(activated)
        return mixed


class NucleusSampler(nn.Module):
    """Keeps the words that make up 90 % of the probability: it needs a running sum."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """``[rows, WIDTH]`` to ``[rows, WORDS]``."""
        probabilities = torch.softmax(self.head(hidden), -1)
        reached = torch.cumsum(probabilities, dim=-1)
        return probabilities * (reached < 0.9)


def line_of(module: type[nn.Module], text: str) -> int:
    """Number of the line of a module's source that holds `text`."""
    lines, first = inspect.getsourcelines(module)
    (found,) = (index for index, line in enumerate(lines) if text in line)
    return first + found
