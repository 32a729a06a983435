"""``grid_sample`` of volumes: the corners around each place, gathered and weighted."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor

from tapml.importing.written_terms import refuse_many

_aten: Final = torch.ops.aten
_NEAREST: Final = 1
_BORDER, _REFLECTION = 1, 2


def volumes() -> dict[Any, Callable[..., Any]]:
    """What is written out here, by operation."""
    return {_aten.grid_sampler_3d.default: _sampled}


def _sampled(volume: Tensor, grid: Tensor, mode: int, padding: int, aligned: bool) -> Tensor:
    """Volumes ``[N, C, D, H, W]`` at ``[N, d, h, w, 3]``, of which the first is along ``W``."""
    extents = volume.shape[:1:-1]
    refuse_many("grid_sample", *grid.shape[:4], volume.shape[1])
    axes = [
        _place(grid[..., axis], extent, padding, aligned) for axis, extent in enumerate(extents)
    ]
    if mode == _NEAREST:
        return _gathered(volume, [torch.round(each) for each in axes])
    found: Any = None
    for corner in product((0, 1), repeat=3):
        weight: Any = None
        places = []
        for far, axis in zip(corner, axes, strict=True):
            first = torch.floor(axis)
            share = axis - first if far else first + 1 - axis
            weight = share if weight is None else weight * share
            places.append(first + far)
        part = _gathered(volume, places, weight)
        found = part if found is None else found + part
    return found  # type: ignore[no-any-return]


def _place(given: Tensor, extent: int, padding: int, aligned: bool) -> Tensor:
    """From -1 to 1 in the grid, from 0 to `extent` less one here."""
    place = (given + 1) / 2 * (extent - 1) if aligned else ((given + 1) * extent - 1) / 2
    if padding == _REFLECTION:
        least, span = (0.0, extent - 1.0) if aligned else (-0.5, float(extent))
        place = _reflected(place, least, span)
    if padding not in (_BORDER, _REFLECTION):
        return place
    # PyTorch takes the last one for what is no number.
    last = torch.full_like(place, extent - 1)
    return torch.where(torch.isnan(place), last, place.clamp(0, extent - 1))


def _reflected(place: Tensor, least: float, span: float) -> Tensor:
    """Turned round at both ends of a span as often as it takes."""
    if span <= 0:
        return torch.zeros_like(place)
    apart = (place - least).abs()
    rounds = torch.floor(apart / span)
    rest = apart - rounds * span
    turned = rounds - 2 * torch.floor(rounds / 2) > 0
    return torch.where(turned, span - rest, rest) + least


def _gathered(volume: Tensor, places: list[Tensor], weight: Tensor | None = None) -> Tensor:
    """The elements at places times their weights, zero beside the volume for every weight."""
    inside: Any = None
    flat: Any = None
    for place, extent in reversed([*zip(places, volume.shape[:1:-1], strict=True)]):
        here = (place >= 0) & (place < extent)
        inside = here if inside is None else inside & here
        # What is no number is at no place.
        number = torch.where(here, place, torch.zeros_like(place)).to(torch.int64)
        flat = number if flat is None else flat * extent + number
    count, channels = volume.shape[:2]
    shape = flat.shape[1:]
    wanted = flat.reshape(count, 1, -1).expand(count, channels, -1)
    rows = volume.reshape(count, channels, -1).gather(2, wanted).reshape(count, channels, *shape)
    rows = rows if weight is None else rows * weight.unsqueeze(1)
    return torch.where(inside.unsqueeze(1), rows, torch.zeros((), dtype=volume.dtype))
