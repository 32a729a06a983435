"""Layers from JAX's own calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import jax
import numpy as np
from jax import lax

from tapml.backends.keras_layers import (
    OwnCall,
    activated,
    broadcast,
    grouped_kernel,
    kernel_of,
    normalized_axes,
    own_calls,
    weight,
    window_of,
)
from tapml.backends.runner import Array

_ACTIVATED: Final = partial(activated, library=jax.nn, gelu=partial(jax.nn.gelu, approximate=False))


def _convolution(layer: Any, x: Array) -> Any:
    window = window_of(layer, x.shape)
    kernel, groups = grouped_kernel(layer)
    spatial = "DHW"[3 - (x.ndim - 2) :]
    names = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
    made = lax.conv_general_dilated(
        jax.numpy.asarray(x), jax.numpy.asarray(kernel), window.strides, window.pads,
        rhs_dilation=window.dilation, dimension_numbers=names, feature_group_count=groups,
    )  # fmt: skip
    bias = weight(layer.bias)
    return _ACTIVATED(layer, made if bias is None else made + bias)


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
    return _ACTIVATED(layer, made if bias is None else made + bias)


OWN_CALLS: Final[Mapping[str, OwnCall]] = own_calls(
    _convolution,
    _average,
    _largest,
    ("DepthwiseConv1D", "DepthwiseConv2D"),
    BatchNormalization=_batch_normalization,
    LayerNormalization=_layer_normalization,
    Dense=_dense,
)
