"""Layers from TensorFlow's own calls."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import tensorflow as tf

from tapml.backends.keras_layers import (
    OwnCall,
    activated,
    broadcast,
    kernel_of,
    normalized_axes,
    own_calls,
    weight,
    window_of,
)
from tapml.backends.runner import Array

_ACTIVATED: Final = partial(activated, library=tf.nn)


def _convolution(layer: Any, x: Array) -> Any:
    window = window_of(layer, x.shape)
    kernel = kernel_of(layer)
    padded = tf.pad(x, [(0, 0), *window.pads, (0, 0)])
    if hasattr(layer, "depth_multiplier"):
        # It takes two spatial axes.
        made = tf.nn.depthwise_conv2d(
            padded, kernel, (1, *window.strides, 1), "VALID", dilations=window.dilation
        )
    else:
        made = tf.nn.convolution(padded, kernel, window.strides, "VALID", dilations=window.dilation)
    bias = weight(layer.bias)
    return _ACTIVATED(layer, made if bias is None else tf.nn.bias_add(made, bias))


def _average(layer: Any, x: Array) -> Any:
    window = window_of(layer, x.shape)
    return tf.nn.pool(x, window.size, "AVG", window.strides, layer.padding.upper())


def _largest(layer: Any, x: Array) -> Any:
    window = window_of(layer, x.shape)
    padded = tf.pad(x, [(0, 0), *window.pads, (0, 0)], constant_values=-np.inf)
    return tf.nn.pool(padded, window.size, "MAX", window.strides, "VALID")


def _batch_normalization(layer: Any, x: Array) -> Any:
    axes = normalized_axes(layer, x.ndim)
    weights = (layer.moving_mean, layer.moving_variance, layer.beta, layer.gamma)
    mean, variance, bias, gain = (broadcast(weight(each), axes, x.shape) for each in weights)
    return tf.nn.batch_normalization(x, mean, variance, bias, gain, layer.epsilon)


def _layer_normalization(layer: Any, x: Array) -> Any:
    axes = normalized_axes(layer, x.ndim)
    bias, gain = (broadcast(weight(each), axes, x.shape) for each in (layer.beta, layer.gamma))
    mean, variance = tf.nn.moments(tf.constant(x), axes, keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, bias, gain, layer.epsilon)


def _dense(layer: Any, x: Array) -> Any:
    kernel, bias = kernel_of(layer), weight(layer.bias)
    made = tf.tensordot(x, kernel, 1)
    return _ACTIVATED(layer, made if bias is None else tf.nn.bias_add(made, bias))


OWN_CALLS: Final[Mapping[str, OwnCall]] = own_calls(
    _convolution,
    _average,
    _largest,
    ("DepthwiseConv2D",),
    BatchNormalization=_batch_normalization,
    LayerNormalization=_layer_normalization,
    Dense=_dense,
)
