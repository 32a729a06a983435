"""A Keras layer's settings and weights, as numbers that a library's own calls take.

CRADLE asks whether a fault is the interface's or the library's: a layer rebuilt from the library's
own calls (``own_calls.py`` in a backend's folder) passes by what Keras makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from tapml.backends.runner import Array
from tapml_targets.errors import UnsupportedOperatorError

OwnCall: TypeAlias = Callable[[Any, Array], Any]
"""The layer and what it reads, to what it returns."""
# The same name and the same defaults in Keras and in the libraries that have them.
_ACTIVATIONS: Final = frozenset((
    "relu", "relu6", "elu", "selu", "gelu", "silu", "softplus", "tanh", "sigmoid", "softmax",
    "log_softmax",
))  # fmt: skip


@dataclass(frozen=True)
class Window:
    """What a convolution or a pooling slides over the spatial axes.

    Attributes
    ----------
    size, strides, dilation
        By axis.
    pads
        Before and behind each axis; `same` puts the odd one behind.
    """

    size: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]


def window_of(layer: Any, shape: Sequence[int]) -> Window:
    """The window of a layer over an array of this shape.

    Raises
    ------
    UnsupportedOperatorError
        If channels go first, or the padding is neither `same` nor `valid`.
    """
    if layer.data_format != "channels_last" or layer.padding not in ("same", "valid"):
        raise UnsupportedOperatorError(
            f"{layer.name} has {layer.data_format} and the padding {layer.padding}"
        )
    rank = len(shape) - 2
    size = tuple(getattr(layer, "kernel_size", None) or layer.pool_size)
    strides = _by_axis(layer.strides, rank)
    dilation = _by_axis(getattr(layer, "dilation_rate", 1), rank)
    pads = []
    for extent, kernel, stride, step in zip(shape[1:-1], size, strides, dilation, strict=True):
        total = max((-(-extent // stride) - 1) * stride + (kernel - 1) * step + 1 - extent, 0)
        pads.append((total // 2, total - total // 2) if layer.padding == "same" else (0, 0))
    return Window(size, strides, dilation, tuple(pads))


def kernel_of(layer: Any) -> Array:
    """The kernel of a layer that has one."""
    import keras

    return np.array(keras.ops.convert_to_numpy(layer.kernel))


def grouped_kernel(layer: Any) -> tuple[Array, int]:
    """The kernel of a convolution, and its groups: as many as channels in a depthwise layer."""
    kernel = kernel_of(layer)
    if hasattr(layer, "depth_multiplier"):
        return kernel.reshape(*kernel.shape[:-2], 1, -1), kernel.shape[-2]
    return kernel, getattr(layer, "groups", 1)


def weight(variable: Any) -> Array | None:
    """A variable as an array; None where the layer has none."""
    if variable is None:
        return None
    import keras

    return np.array(keras.ops.convert_to_numpy(variable))


def normalized_axes(layer: Any, rank: int) -> tuple[int, ...]:
    """The axes that a normalization goes over, from 0."""
    axes = layer.axis if isinstance(layer.axis, list | tuple) else [layer.axis]
    return tuple(sorted(int(each) % rank for each in axes))


def broadcast(values: Array | None, axes: Sequence[int], shape: Sequence[int]) -> Array | None:
    """A gain or a bias of these axes, in a shape that goes with the whole array."""
    if values is None:
        return None
    return values.reshape([extent if at in axes else 1 for at, extent in enumerate(shape)])


def activated(layer: Any, value: Any, library: object, **others: Callable[[Any], Any]) -> Any:
    """The layer's activation, as the library has it.

    Parameters
    ----------
    layer
        The layer.
    value
        What it made before its activation.
    library
        The module with the library's functions, under the names that Keras has.
    others
        Functions that the library has under another name, or with another default.

    Raises
    ------
    UnsupportedOperatorError
        If the library has no function of that name.
    """
    function = getattr(layer, "activation", None)
    if function is None:
        return value
    # A layer may take the place of a function, and has the name of its class.
    name = getattr(function, "__name__", type(function).__name__)
    if name == "linear":
        return value
    own = others.get(name) or (getattr(library, name, None) if name in _ACTIVATIONS else None)
    if own is None:
        raise UnsupportedOperatorError(f"no own call for the activation {name}")
    return own(value)


def own_calls(
    convolution: OwnCall,
    average: OwnCall,
    largest: OwnCall,
    convolved: Sequence[str],
    **others: OwnCall,
) -> Mapping[str, OwnCall]:
    """The ``OWN_CALLS`` of a library.

    Parameters
    ----------
    convolution, average, largest
        Take every rank.
    convolved
        Depthwise layers that `convolution` takes besides the plain ones.
    others
        By the layer's class.
    """
    ranks = (1, 2, 3)
    return {
        **dict.fromkeys((*(f"Conv{rank}D" for rank in ranks), *convolved), convolution),
        **{f"AveragePooling{rank}D": average for rank in ranks},
        **{f"MaxPooling{rank}D": largest for rank in ranks},
        **others,
    }


def _by_axis(value: Any, rank: int) -> tuple[int, ...]:
    return (int(value),) * rank if isinstance(value, int) else tuple(int(each) for each in value)
