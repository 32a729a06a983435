"""Resampled rows, images and volumes are PyTorch's, at constant places."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tapml.importing.exporting import EntryDescription, export_entry
from tapml.importing.importer import import_module
from tests.importing.modules import root_module

SIZES: tuple[dict[str, Any], ...] = (
    {"scale_factor": 1.5},
    {"scale_factor": 0.7, "recompute_scale_factor": True},
    {"size": 9},
    {"scale_factor": 2},
)


class Resampled(nn.Module):
    """In one mode, by scales and to sizes."""

    def __init__(self, mode: str, aligned: bool | None = None) -> None:
        super().__init__()
        self.mode, self.aligned = mode, aligned

    def forward(self, values: Tensor) -> tuple[Tensor, ...]:
        """Of any rank that the mode has."""
        return tuple(
            functional.interpolate(values, mode=self.mode, align_corners=self.aligned, **size)
            for size in SIZES
        )


class Upsampled(nn.Module):
    """What networks of images do."""

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Images ``[1, 2, 5, 4]``."""
        resize = functional.interpolate
        return (
            resize(images, scale_factor=1.5, mode="bilinear"),
            resize(images, (7, 5)),
            resize(images, (3, 7), mode="bicubic", align_corners=True),
        )


@pytest.mark.parametrize(
    ("mode", "aligned", "rank"),
    [
        ("nearest", None, 5),
        ("nearest-exact", None, 4),
        ("linear", True, 3),
        ("bilinear", False, 4),
        ("trilinear", True, 5),
        ("bicubic", True, 4),
    ],
)
def test_each_mode_is_pytorchs(mode: str, aligned: bool | None, rank: int) -> None:
    torch.manual_seed(3)
    values = torch.randn(2, 3, 7, 6, 4)[(slice(None),) * rank + (0,) * (5 - rank)]
    module = Resampled(mode, aligned)
    exported = export_entry(EntryDescription("main", module, (values,), ("values",)))
    targets = {str(node.target) for node in exported.program.graph.nodes}
    assert not any("upsample" in each for each in targets)
    assert exported.written_out
    exact = mode.startswith("nearest")
    for ours, own in zip(exported.program.module()(values), module(values), strict=True):
        torch.testing.assert_close(ours, own, atol=0 if exact else 1e-5, rtol=0 if exact else 1e-5)


def test_what_is_imported_computes_no_places() -> None:
    torch.manual_seed(3)
    images = torch.randn(1, 2, 5, 4)
    imported = import_module(Upsampled(), (images,))
    report = root_module(imported, [images.numpy()])
    assert all(each.ratio <= 1 for each in report.compared)
    assert not any("floor" in each for each in imported.plan.operators)


class Smoothed(nn.Module):
    """With antialias, smaller, larger and by a scale."""

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Images ``[1, 2, 9, 12]``."""
        return tuple(
            functional.interpolate(images, mode=mode, antialias=True, **size)
            for mode, size in (
                ("bilinear", {"size": (5, 4)}),
                ("bilinear", {"scale_factor": 0.4}),
                ("bicubic", {"size": (13, 12)}),
                ("bicubic", {"size": (4, 17), "align_corners": True}),
            )
        )


def test_antialias_is_a_product_with_constant_weights() -> None:
    torch.manual_seed(3)
    images = torch.randn(1, 2, 9, 12)
    exported = export_entry(EntryDescription("main", Smoothed(), (images,), ("images",)))
    assert not any("upsample" in str(node.target) for node in exported.program.graph.nodes)
    report = root_module(import_module(Smoothed(), (images,)), [images.numpy()])
    assert all(each.ratio <= 1 for each in report.compared)
