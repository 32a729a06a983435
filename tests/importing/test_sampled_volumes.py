"""Volumes are sampled at the places, and beyond their edges, as PyTorch does it."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from tapml.importing.importer import import_module
from tapml.importing.sampled_volumes import volumes
from tests.importing.modules import root_module

_sampled = volumes()[torch.ops.aten.grid_sampler_3d.default]


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("aligned", [False, True])
def test_each_mode_is_pytorchs(mode: int, padding: int, aligned: bool) -> None:
    torch.manual_seed(3)
    volume = torch.randn(2, 3, 4, 5, 6)
    grid = torch.rand(2, 3, 2, 4, 3) * 7 - 3.5
    wanted = torch.ops.aten.grid_sampler_3d(volume, grid, mode, padding, aligned)
    torch.testing.assert_close(_sampled(volume, grid, mode, padding, aligned), wanted)


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("aligned", [False, True])
def test_a_place_that_is_no_number_is_pytorchs(mode: int, padding: int, aligned: bool) -> None:
    volume = torch.randn(1, 2, 3, 4, 5)
    grid = torch.zeros(1, 1, 1, 3, 3)
    grid[..., 0] = torch.tensor([math.nan, math.inf, -math.inf])
    wanted = torch.ops.aten.grid_sampler_3d(volume, grid, mode, padding, aligned)
    torch.testing.assert_close(_sampled(volume, grid, mode, padding, aligned), wanted)


class Sampled(torch.nn.Module):
    """Volumes at places of a grid."""

    def forward(self, volume: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        """Volumes ``[N, C, D, H, W]`` and a grid ``[N, d, h, w, 3]``."""
        return functional.grid_sample(volume, grid, align_corners=False)


def test_a_plan_samples_volumes() -> None:
    torch.manual_seed(3)
    given = torch.randn(1, 2, 3, 4, 5), torch.rand(1, 2, 3, 2, 3) * 3 - 1.5
    report = root_module(import_module(Sampled(), given), [each.numpy() for each in given])
    assert all(each.ratio <= 1 for each in report.compared)
