"""Layers from PyTorch's own calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch.nn import functional

from tapml.backends.keras_layers import (
    OwnCall,
    Window,
    activated,
    grouped_kernel,
    kernel_of,
    normalized_axes,
    own_calls,
    weight,
    window_of,
)
from tapml.backends.runner import Array

_ACTIVATED: Final = partial(
    activated, library=functional, softmax=partial(functional.softmax, dim=-1),
    log_softmax=partial(functional.log_softmax, dim=-1),
)  # fmt: skip
_CONVOLUTIONS: Final = (functional.conv1d, functional.conv2d, functional.conv3d)
_AVERAGES: Final = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)
_LARGEST: Final = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)


def _tensor(array: Array | None) -> Any:
    return None if array is None else torch.from_numpy(np.ascontiguousarray(array))


def _channels_first(x: Array) -> Any:
    return _tensor(np.moveaxis(x, -1, 1))


def _channels_last(value: Any) -> Any:
    return torch.movedim(value, 1, -1)


def _padded(value: Any, window: Window, fill: float = 0.0) -> Any:
    sides: Sequence[int] = [side for pads in reversed(window.pads) for side in pads]
    return functional.pad(value, list(sides), value=fill)


def _convolution(layer: Any, x: Array) -> Any:
    window = window_of(layer, x.shape)
    kernel, groups = grouped_kernel(layer)
    made = _CONVOLUTIONS[x.ndim - 3](
        _padded(_channels_first(x), window),
        _tensor(np.moveaxis(kernel, (-1, -2), (0, 1))),
        _tensor(weight(layer.bias)), window.strides, 0, window.dilation, groups,
    )  # fmt: skip
    return _ACTIVATED(layer, _channels_last(made))


def _average(layer: Any, x: Array) -> Any:
    window = window_of(layer, x.shape)
    pool = _AVERAGES[x.ndim - 3]
    value = _channels_first(x)
    sums, counts = (
        pool(_padded(each, window), window.size, window.strides)
        for each in (value, torch.ones_like(value))
    )
    return _channels_last(sums / counts)


def _largest(layer: Any, x: Array) -> Any:
    window = window_of(layer, x.shape)
    value = _padded(_channels_first(x), window, -np.inf)
    return _channels_last(_LARGEST[x.ndim - 3](value, window.size, window.strides))


def _batch_normalization(layer: Any, x: Array) -> Any:
    (axis,) = normalized_axes(layer, x.ndim)
    weights = (layer.moving_mean, layer.moving_variance, layer.gamma, layer.beta)
    mean, variance, gain, bias = (_tensor(weight(each)) for each in weights)
    value = _tensor(np.moveaxis(x, axis, 1))
    made = functional.batch_norm(value, mean, variance, gain, bias, False, 0.0, layer.epsilon)
    return torch.movedim(made, 1, axis)


def _of_last_axes(layer: Any, x: Array) -> tuple[Any, list[int], tuple[int, ...]]:
    axes = normalized_axes(layer, x.ndim)
    last = tuple(range(x.ndim - len(axes), x.ndim))
    return _tensor(np.moveaxis(x, axes, last)), [x.shape[each] for each in axes], axes


def _layer_normalization(layer: Any, x: Array) -> Any:
    value, shape, axes = _of_last_axes(layer, x)
    gain, bias = (_tensor(weight(each)) for each in (layer.gamma, layer.beta))
    made = functional.layer_norm(value, shape, gain, bias, layer.epsilon)
    return torch.movedim(made, tuple(range(x.ndim - len(axes), x.ndim)), axes)


def _rms_normalization(layer: Any, x: Array) -> Any:
    value, shape, axes = _of_last_axes(layer, x)
    made = functional.rms_norm(value, shape, _tensor(weight(layer.scale)), layer.epsilon)
    return torch.movedim(made, tuple(range(x.ndim - len(axes), x.ndim)), axes)


def _dense(layer: Any, x: Array) -> Any:
    kernel = kernel_of(layer)
    made = functional.linear(_tensor(x), _tensor(kernel.T), _tensor(weight(layer.bias)))
    return _ACTIVATED(layer, made)


OWN_CALLS: Final[Mapping[str, OwnCall]] = own_calls(
    _convolution,
    _average,
    _largest,
    ("DepthwiseConv1D", "DepthwiseConv2D"),
    BatchNormalization=_batch_normalization,
    LayerNormalization=_layer_normalization,
    RMSNormalization=_rms_normalization,
    Dense=_dense,
)
