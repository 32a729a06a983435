"""A module whose operators meet what implementations of WGSL are known to differ in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tapml.execute.arrays import Array

KERNELS = Path(__file__).with_name("kernels")
"""Kernels written by hand as one would write them without knowing of it."""
TERMS = 100_000


class Edges(nn.Module):
    """Functions at their edges, and a sum that is longer than one driver's loops."""

    def forward(
        self, angles: Tensor, small: Tensor, large: Tensor, gaps: Tensor, terms: Tensor
    ) -> tuple[Tensor, ...]:
        """Arrays of ``[4]`` and ``[4, TERMS]``; each has an operator of its own."""
        filled = torch.where(torch.isnan(gaps), torch.ones_like(gaps), gaps)
        return torch.sin(angles), torch.log(small), torch.tanh(large), filled, terms.sum(-1)


def inputs() -> list[Array]:
    """Arguments of the module, with the places that matter in them."""
    return [
        np.array([0.5, -1.25, 3.0, 12.0], np.float32),
        np.array([1.0, 0.5, 2.0, 0.0], np.float32),
        np.array([0.25, -0.5, 2.0, 89.0], np.float32),
        np.array([1.0, np.nan, 2.0, np.inf], np.float32),
        np.random.default_rng(4).random((4, TERMS), np.float32),
    ]
