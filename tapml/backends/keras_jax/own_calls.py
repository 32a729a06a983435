"""Layers from JAX's own calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import numpy as np
from jax import lax

from tapml.backends.keras_layers import (
    OwnCall,
    activated,
    broadcast,
    kernel_of,
    normalized_axes,
    weight,
    window_of,
)
from tapml.backends.runner import Array

_ACTIVATIONS: Final = {
    "relu": jax.nn.relu, "tanh": jax.numpy.tanh, "sigmoid": jax.nn.sigmoid, "elu": jax.nn.elu,
    "softmax": jax.nn.softmax, "gelu": lambda value: jax.nn.gelu(value, approximate=False),
}  # fmt: skip


def _convolution(layer: Any, x: Array) -> Any:
    window = window_of(layer, x.shape)
    kernel = kernel_of(layer)
    groups = getattr(layer, "groups", 1)
    if hasattr(layer, "depth_multiplier"):
        groups = kernel.shape[-2]
        kernel = kernel.reshape(*kernel.shape[:-2], 1, -1)
    spatial = "DHW"[3 - (x.ndim - 2) :]
    names = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
    made = lax.conv_general_dilated(
        jax.numpy.asarray(x), jax.numpy.asarray(kernel), window.strides, window.pads,
        rhs_dilation=window.dilation, dimension_numbers=names, feature_group_count=groups,
    )  # fmt: skip
    bias = weight(layer.bias)
    return activated(layer, made if bias is None else made + bias, _ACTIVATIONS)


def _pooled(layer: Any, x: Any, start: float, reduce: Callable[..., Any]) -> Any:
    window = window_of(layer, x.shape)
    return lax.reduce_window(
        x, start, reduce, (1, *window.size, 1), (1, *window.strides, 1),
        ((0, 0), *window.pads, (0, 0)),
    )  # fmt: skip


def _average(layer: Any, x: Array) -> Any:
    sums, counts = (_pooled(layer, each, 0.0, lax.add) for each in (x, np.ones_like(x)))
    return sums / counts


def _largest(layer: Any, x: Array) -> Any:
    return _pooled(layer, x, -np.inf, lax.max)


def _scaled(value: Any, gain: Array | None, bias: Array | None) -> Any:
    value = value if gain is None else value * gain
    return value if bias is None else value + bias


def _batch_normalization(layer: Any, x: Array) -> Any:
    axes = normalized_axes(layer, x.ndim)
    weights = (layer.moving_mean, layer.moving_variance, layer.gamma, layer.beta)
    mean, variance, gain, bias = (broadcast(weight(each), axes, x.shape) for each in weights)
    made = jax.nn.standardize(x, None, mean, variance, layer.epsilon)
    return _scaled(made, gain, bias)


def _layer_normalization(layer: Any, x: Array) -> Any:
    axes = normalized_axes(layer, x.ndim)
    gain, bias = (broadcast(weight(each), axes, x.shape) for each in (layer.gamma, layer.beta))
    return _scaled(jax.nn.standardize(x, axes, epsilon=layer.epsilon), gain, bias)


def _dense(layer: Any, x: Array) -> Any:
    kernel, bias = kernel_of(layer), weight(layer.bias)
    made = lax.dot_general(x, kernel, (((x.ndim - 1,), (0,)), ((), ())))
    return activated(layer, made if bias is None else made + bias, _ACTIVATIONS)


OWN_CALLS: Final[Mapping[str, OwnCall]] = {
    **dict.fromkeys(("Conv1D", "Conv2D", "Conv3D", "DepthwiseConv1D", "DepthwiseConv2D"),
                    _convolution),
    **{f"AveragePooling{rank}D": _average for rank in (1, 2, 3)},
    **{f"MaxPooling{rank}D": _largest for rank in (1, 2, 3)},
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _layer_normalization,
    "Dense": _dense,
}  # fmt: skip
