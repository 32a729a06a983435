"""Discrete Fourier transforms written out as products with cosines and sines.

The formulas are those of PyTorch's operations of the same arguments. A transform of n numbers takes
n^2 products, which every platform has.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tapml.importing.written_terms import refuse_many


def transformed(value: Tensor, dims: list[int], normalization: int, forward: bool) -> Tensor:
    """A discrete Fourier transform, as products with cosines and sines."""
    real, imaginary = torch.view_as_real(value).unbind(-1)
    count = 1
    for dim in dims:
        count *= value.shape[dim]
        real, imaginary = _turned(real, imaginary, dim, forward)
    scale = _scale(count, normalization)
    return torch.complex(real * scale, imaginary * scale)


def transformed_real(value: Tensor, dims: list[int], normalization: int, onesided: bool) -> Tensor:
    """The same of real numbers; `onesided` leaves out what are conjugates of the others."""
    *others, last = dims
    extent = value.shape[last]
    cosines, sines = _waves(value, extent, extent // 2 + 1 if onesided else extent)
    rows = value.movedim(last, -1)
    real, imaginary = ((rows @ each).movedim(-1, last) for each in (cosines, -sines))
    count = extent
    for dim in others:
        count *= value.shape[dim]
        real, imaginary = _turned(real, imaginary, dim, True)
    scale = _scale(count, normalization)
    return torch.complex(real * scale, imaginary * scale)


def back_to_real(value: Tensor, dims: list[int], normalization: int, extent: int) -> Tensor:
    """The real transform of the first half of numbers whose other half are their conjugates."""
    *others, last = dims
    real, imaginary = torch.view_as_real(value).unbind(-1)
    count = extent
    for dim in others:
        count *= value.shape[dim]
        real, imaginary = _turned(real, imaginary, dim, False)
    half = extent // 2 + 1
    real, imaginary = (each.narrow(last, 0, half).movedim(last, -1) for each in (real, imaginary))
    places = torch.arange(half)
    alone = (places == 0) | (places * 2 == extent)
    weight = torch.where(alone, 1.0, 2.0).to(real.dtype)
    cosines, sines = _waves(real, extent, half)
    found = (real * weight) @ cosines.T - (imaginary * weight) @ sines.T
    return found.movedim(-1, last) * _scale(count, normalization)


def _turned(real: Tensor, imaginary: Tensor, dim: int, forward: bool) -> tuple[Tensor, Tensor]:
    extent = real.shape[dim]
    cosines, sines = _waves(real, extent, extent)
    sines = -sines if forward else sines
    real, imaginary = real.movedim(dim, -1), imaginary.movedim(dim, -1)
    both = real @ cosines - imaginary @ sines, real @ sines + imaginary @ cosines
    return both[0].movedim(-1, dim), both[1].movedim(-1, dim)


def _waves(like: Tensor, extent: int, count: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``[extent, count]`` of whole parts of a turn, so that none is large."""
    refuse_many("a Fourier transform", extent, count)
    parts = torch.arange(extent)[:, None] * torch.arange(count)[None] % extent
    angles = parts.to(like.dtype) * (2 * math.pi / extent)
    return angles.cos(), angles.sin()


def _scale(count: int, normalization: int) -> float:
    """None, by the root of the count, or by the count."""
    return 1.0 if normalization == 0 else count ** -(0.5 if normalization == 1 else 1.0)
