"""Small modules that cross the hazards of sections II-B, IV-D and IV-E of the TapML paper."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 24
HIDDEN = 20
ODD_WIDTH = 50


class GeluPerceptron(nn.Module):
    """The MLP of Phi-2 (section IV-E): a GELU by tanh between two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.fc1 = nn.Linear(WIDTH, HIDDEN)
        # A token that one row answers to leaves the others cold.
        nn.init.orthogonal_(self.fc1.weight)
        self.fc2 = nn.Linear(HIDDEN, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        """``[rows, WIDTH]`` to the same."""
        activated = nn.functional.gelu(self.fc1(hidden), approximate="tanh")
        projected: Tensor = self.fc2(activated)
        return projected


class Drift(nn.Module):
    """How far large readings have moved (section II-B: 1035 - 1031 in float16), damped."""

    def forward(self, now: Tensor, before: Tensor) -> Tensor:
        """Two ``[rows, WIDTH]`` tensors to one."""
        return (now - before).abs() * 0.25


class QuantizedKeys(nn.Module):
    """Attention scores on keys that are kept as bytes (section IV-D, int8 on Metal)."""

    def forward(self, query: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
        """``[heads, WIDTH]``, bytes ``[tokens, WIDTH]`` and ``[tokens, 1]`` to scores."""
        keys = (codes.to(query.dtype) - 128) * scale
        return query @ keys.T


class Norm(nn.Module):
    """Rows of a length that no vector divides, by their root mean square (section IV-D)."""

    def forward(self, hidden: Tensor) -> Tensor:
        """``[rows, ODD_WIDTH]`` to the same."""
        return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-5)


class Pick(nn.Module):
    """The next token: where a row is largest."""

    def forward(self, logits: Tensor) -> Tensor:
        """``[rows, tokens]`` to ``[rows]``."""
        return logits.argmax(-1)
