"""Pooling with places, what undoes it, histograms and other forms, written out in others.

:mod:`tapml.importing.written_out` gives them to ``run_decompositions``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from tapml.importing.written_terms import refuse_many
from tapml_targets.errors import UnsupportedOperatorError

_aten: Final = torch.ops.aten
_WITH_PLACES: Final = (
    _aten.max_pool1d_with_indices.default, _aten.max_pool2d_with_indices.default,
)  # fmt: skip
_PLANE: Final = 2
_VOLUME: Final = 3


def windows() -> dict[Any, Callable[..., Any]]:
    """What is written out here, by operation."""
    from torch._decomp import decomposition_table

    known = (_aten.max_unpool2d.default, _aten.max_unpool3d.default)
    return {operation: decomposition_table[operation] for operation in known} | {
        _aten.histc.default: _histogram,
        _aten.histogram.bin_ct: _counted_between,
        _aten.histogram.bins_tensor: _counted,
        _aten.rrelu_with_noise_functional.default: _leaky,
        _aten.convolution.default: _spread_volume,
        _aten.numpy_T.default: lambda x: x.permute(*reversed(range(x.dim()))),
    }


def with_places() -> dict[Any, Callable[..., Any]]:
    """What is written out where the places of largest elements are read, which TVM has not."""
    return {_aten.max_pool2d_with_indices.default: _largest_and_places}


def reads_places(graph: torch.fx.Graph) -> bool:
    """Whether a program reads the places of the largest elements of windows."""
    return any(
        user.args[1] == 1 and user.users
        for node in graph.nodes
        if node.target in _WITH_PLACES
        for user in node.users
    )


def _pair(given: Sequence[int]) -> tuple[int, int]:
    first, *rest = given
    return int(first), int(rest[0] if rest else first)


def _largest_and_places(
    images: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Any:
    """The largest of each window, and its place in the image's rows one after the other."""
    from torch import _meta_registrations

    # PyTorch does not annotate it.
    pooling_output_shape: Any = _meta_registrations.pooling_output_shape
    sizes = images.shape[-_PLANE:]
    if not all(isinstance(each, int) for each in sizes) or not images.is_floating_point():
        return NotImplemented
    spans, gaps, starts = _pair(kernel), _pair(dilation), _pair(padding)
    steps = _pair(stride or kernel)
    counts = [
        int(pooling_output_shape(size, span, start, step, gap, ceil_mode))
        for size, span, start, step, gap in zip(sizes, spans, starts, steps, gaps, strict=True)
    ]
    refuse_many("max_pool2d with places", *images.shape[:-_PLANE], *counts, *spans)
    rows, columns = (
        torch.arange(count)[:, None] * step - start + torch.arange(span)[None] * gap
        for count, step, start, span, gap in zip(counts, steps, starts, spans, gaps, strict=True)
    )
    height, width = (int(each) for each in sizes)
    # Windows by windows' elements: [rows, columns, height x width of a window].
    down = rows[:, None, :, None].expand(counts[0], counts[1], *spans).flatten(-_PLANE)
    across = columns[None, :, None, :].expand(counts[0], counts[1], *spans).flatten(-_PLANE)
    inside = (down >= 0) & (down < height) & (across >= 0) & (across < width)
    places = down.clamp(0, height - 1) * width + across.clamp(0, width - 1)
    windows = images.flatten(-_PLANE)[..., places.reshape(-1)]
    windows = windows.reshape(*images.shape[:-_PLANE], *places.shape)
    lowest = torch.full((), -math.inf, dtype=images.dtype)
    windows = torch.where(inside, windows, lowest)
    largest, which = windows.max(-1)
    # The window's own place among constants, read by its number.
    taken = which[..., None] == torch.arange(places.shape[-1])
    return largest, torch.where(taken, places, torch.zeros_like(places)).sum(-1)


def _histogram(values: Tensor, bins: int = 100, low: float = 0, high: float = 0) -> Any:
    """How many values lie in each of `bins` ranges of one width; of all values if they agree."""
    flat = values.reshape(-1)
    refuse_many("histc", *flat.shape, bins)
    first: Any = torch.full((), float(low), dtype=values.dtype)
    last: Any = torch.full((), float(high), dtype=values.dtype)
    if low == high:
        first, last = flat.amin(), flat.amax()
        one = torch.ones_like(first)
        first, last = (
            torch.where(first == last, first - one, first),
            torch.where(first == last, last + one, last),
        )
    inside = (flat >= first) & (flat <= last)
    scaled = torch.where(inside, (flat - first) * bins / (last - first), torch.zeros_like(flat))
    # The last range has its end.
    place = scaled.to(torch.int32).clamp(max=bins - 1)
    hit = (place[:, None] == torch.arange(bins, dtype=torch.int32)) & inside[:, None]
    return hit.to(values.dtype).sum(0)


def _counted_between(
    values: Tensor,
    bins: int,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    """``histogram`` of ranges of one width, from the least value to the largest without a range."""
    low: Any
    high: Any
    if range is None and values.numel() != 0:
        low, high = values.amin(), values.amax()
    else:
        ends = (0.0, 1.0) if range is None else range
        low, high = (torch.full((), float(each), dtype=values.dtype) for each in ends)
    same = low == high
    low, high = torch.where(same, low - 0.5, low), torch.where(same, high + 0.5, high)
    numbers = torch.arange(bins + 1, dtype=values.dtype)
    step = (high - low) / bins
    # From both ends, as torch.linspace has it.
    last = high - step * (bins - numbers)
    edges = torch.where(numbers < (bins + 1) // 2, low + step * numbers, last)
    return _counted(values, edges, weight=weight, density=density)


def _counted(
    values: Tensor, edges: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    """How many values, or how much of their weights, lie between edges; the last has its end."""
    flat, bins = values.reshape(-1), edges.shape[0] - 1
    refuse_many("histogram", *flat.shape, bins)
    behind = flat >= edges[:-1, None]
    last = torch.arange(bins, dtype=torch.int32)[:, None] == bins - 1
    inside = behind & ((flat < edges[1:, None]) | (last & (flat == edges[1:, None])))
    given = torch.ones_like(flat) if weight is None else weight.reshape(-1)
    found = torch.where(inside, given, torch.zeros((), dtype=given.dtype)).sum(1)
    if density:
        found = found / (found.sum() * (edges[1:] - edges[:-1]))
    return found, edges


def _leaky(
    operand: Tensor,
    noise: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Any:
    """A randomized ReLU outside of training: the slope is the mean."""
    if training:
        return NotImplemented
    return functional.leaky_relu(operand, (lower + upper) / 2), noise


def _spread_volume(volume: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Any:
    """A transposed convolution of volumes: a convolution of the volume with zeros between."""
    if not volume.dtype.is_floating_point:
        raise UnsupportedOperatorError(
            "a convolution is imported of floating-point numbers alone: make them float"
        )
    stride, padding, dilation, transposed, output_padding, groups = rest
    if not transposed or volume.dim() != _VOLUME + 2:
        return NotImplemented
    for axis, step in enumerate(stride, 2):
        if step > 1:
            extent = volume.shape[axis]
            zeros = torch.zeros_like(volume).unsqueeze(axis + 1)
            apart = torch.cat([volume.unsqueeze(axis + 1), *[zeros] * (step - 1)], axis + 1)
            volume = apart.flatten(axis, axis + 1).narrow(axis, 0, (extent - 1) * step + 1)
    around = []
    for axis in reversed(range(_VOLUME)):
        reach = dilation[axis] * (weight.shape[axis + 2] - 1) - padding[axis]
        around += [reach, reach + output_padding[axis]]
    if min(around) < 0:
        return NotImplemented
    volume = functional.pad(volume, around)
    inputs, outputs = weight.shape[:2]
    turned = weight.flip(2, 3, 4).reshape(groups, inputs // groups, outputs, *weight.shape[2:])
    turned = turned.transpose(1, 2).reshape(groups * outputs, inputs // groups, *weight.shape[2:])
    return functional.conv3d(volume, turned, bias, 1, 0, tuple(dilation), groups)
