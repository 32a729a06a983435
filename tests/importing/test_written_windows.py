"""Pooling with places and what undoes it, histograms and others give PyTorch's results."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tapml.importing.importer import import_module
from tests.importing.modules import root_module


class Unpooled(nn.Module):
    """Images pooled and unpooled at their places, as SegNet does; places alone; rows turned."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Images ``[2, 3, 8, 9]``."""
        pooled, places = functional.max_pool2d(images, 2, return_indices=True)
        restored = functional.max_unpool2d(self.inner(pooled), places, [2, 2], output_size=[8, 9])
        odd, where = functional.max_pool2d(
            images, (3, 2), (2, 3), (1, 0), dilation=(2, 1), ceil_mode=True, return_indices=True
        )
        return restored, odd, where, images[0, 0].T


class Histograms(nn.Module):
    """``histogram`` with counts and edges of its own, with weights and as a density."""

    def forward(self, values: Tensor) -> tuple[Tensor, ...]:
        """Values ``[5, 8]``."""
        found = (
            torch.histogram(values, 6),
            torch.histogram(values, 7, range=(-1.0, 0.5), weight=values.abs()),
            torch.histogram(values, torch.tensor([-1.0, 0, 0.5, 3]), density=True),
            torch.histogram(values.clamp(2, 2), 3),
            torch.histogram(values[:0], 4),
        )
        return tuple(each for pair in found for each in pair)


class Counted(nn.Module):
    """Values counted in ranges that are given, or that they have, or that are one point."""

    def forward(self, values: Tensor) -> tuple[Tensor, ...]:
        """Values ``[5, 8]``."""
        return (
            torch.histc(values, 10, -1, 1),
            torch.histc(values, 7),
            torch.histc(values * 0, 4),
            functional.rrelu(values),
        )


def test_places_of_largest_elements_are_pytorchs_and_unpool() -> None:
    torch.manual_seed(2)
    module = Unpooled().eval()
    _hold(module, torch.randn(2, 3, 8, 9))


def test_values_are_counted_as_pytorch_counts_them() -> None:
    torch.manual_seed(3)
    _hold(Counted().eval(), torch.randn(5, 8))


def test_histograms_have_pytorchs_edges() -> None:
    torch.manual_seed(3)
    _hold(Histograms().eval(), torch.randn(5, 8))


def test_a_transposed_convolution_of_volumes_is_one_of_a_spread_volume() -> None:
    torch.manual_seed(4)
    sizes = {"stride": (1, 2, 3), "padding": (0, 1, 1), "dilation": (2, 1, 1)}
    module = nn.ConvTranspose3d(4, 6, (2, 3, 3), output_padding=(0, 1, 2), groups=2, **sizes)  # type: ignore[arg-type]
    _hold(module.eval(), torch.randn(2, 4, 3, 4, 5))


def _hold(module: nn.Module, given: Tensor) -> None:
    """The plan gives what the module gives, at every step."""
    report = root_module(import_module(module, [given]), [given.numpy()])
    assert all(each.ratio <= 1 for each in report.compared)
