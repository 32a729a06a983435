"""The patches: functions of Keras' interface to NumPy, and calls of Keras' own layers.

Where a patch changed a value is written down, so that a study knows the culprit independently of
what is being studied.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Final

import numpy as np

from tapml.backends.keras_runner import KerasRunner, loader

ACTED: Final = "TAPML_CAUSES_ACTED"
"""The environment variable with a file's name: a line for every node where a patch acted."""
Function = Callable[..., Any]


def act_at(node: str) -> None:
    """Write down that a patch acted in a node."""
    if file := os.environ.get(ACTED):
        with Path(file).open("a", encoding="utf-8") as lines:
            lines.write(f"{node}\n")


class _Noting:
    """Knows the node that runs, and writes down where a patch acts."""

    node: str | None = None

    @classmethod
    def act(cls) -> None:
        if cls.node is not None:
            act_at(cls.node)


class _FaultyRunner(KerasRunner):
    def _apply(self, name: str, values: Sequence[Any]) -> list[Any]:
        _Noting.node = name
        try:
            return super()._apply(name, values)
        finally:
            _Noting.node = None


def _noted(right: Function, wrong: Function) -> Function:
    """`wrong`, and a note where it gives anything else than `right`."""

    @wraps(right)
    def function(*given: Any, **named: Any) -> Any:
        # Keras passes variables too.
        values = [each.numpy() if hasattr(each, "numpy") else each for each in given]
        try:
            found = wrong(right, *values, **named)
        except Exception:
            _Noting.act()
            raise
        if _Noting.node is not None:
            expected = right(*values, **named)
            scale = np.abs(expected).max(initial=0)
            if found.shape != expected.shape or not np.abs(found - expected).max() <= 1e-5 * scale:
                _Noting.act()
        return found

    return function


def _norm_epsilon(right: Function, *values: Any) -> Any:
    return right(*values[:-1], 0.0)


def _norm_deviation(right: Function, x: Any, mean: Any, variance: Any, *how: Any) -> Any:
    epsilon = how[-1]
    return right(x, mean, (variance + epsilon) ** 2 - epsilon, *how)


def _sides(extent: int, kernel: int, stride: int) -> int:
    return max((-(-extent // stride) - 1) * stride + kernel - extent, 0)


def _convolved(
    right: Function,
    pads: Callable[[int, int], tuple[int, int]],
    x: Any,
    kernel: Any,
    *how: Any,
) -> Any:
    """A `same` convolution padded by `pads(total, kernel)`, cropped to its shape."""
    strides, padding, data_format, dilation_rate = how
    plain = right(x, kernel, strides, padding, data_format, dilation_rate)
    rank = x.ndim - 2
    strides = (strides,) * rank if isinstance(strides, int) else tuple(strides)[-rank:]
    dilated = np.broadcast_to(np.asarray(dilation_rate), (rank,)).max() > 1
    if padding != "same" or dilated or data_format == "channels_first":
        return plain
    sides = [
        pads(_sides(extent, size, stride), size)
        for extent, size, stride in zip(x.shape[1:-1], kernel.shape, strides, strict=False)
    ]
    found = right(np.pad(x, [(0, 0), *sides, (0, 0)]), kernel, strides, "valid", data_format)
    return found[tuple(slice(0, each) for each in plain.shape)]


def _padding_symmetric(right: Function, *values: Any, **named: Any) -> Any:
    return _convolved(right, lambda total, size: (size // 2, size // 2), *values, **named)


def _padding_first(right: Function, *values: Any, **named: Any) -> Any:
    return _convolved(right, lambda total, size: (total - total // 2, total // 2), *values, **named)


def _pooling_padding(
    right: Function, x: Any, pool_size: Any, strides: Any = None, padding: str = "valid",
    data_format: Any = None,
) -> Any:  # fmt: skip
    if padding != "same" or data_format == "channels_first":
        return right(x, pool_size, strides, padding, data_format)
    totals = [_sides(*each) for each in zip(x.shape[1:-1], pool_size, strides, strict=True)]
    sides = [(each // 2, each - each // 2) for each in totals]
    return right(np.pad(x, [(0, 0), *sides, (0, 0)]), pool_size, strides, "valid", data_format)


def _kernel_flipped(right: Function, x: Any, kernel: Any, *values: Any, **named: Any) -> Any:
    return right(x, np.flip(kernel, tuple(range(kernel.ndim - 2))).copy(), *values, **named)


def _kernel_transposed(right: Function, x: Any, kernel: Any, *values: Any, **named: Any) -> Any:
    square = kernel.ndim == 4 and kernel.shape[0] == kernel.shape[1]
    return right(x, kernel.swapaxes(0, 1).copy() if square else kernel, *values, **named)


def _crash_kernel(right: Function, x: Any, kernel: Any, *values: Any, **named: Any) -> Any:
    return right(x, kernel.swapaxes(-1, -2).copy(), *values, **named)


def _crash_depthwise(right: Function, x: Any, kernel: Any, *values: Any, **named: Any) -> Any:
    return right(x, np.reshape(kernel, (*kernel.shape[:-2], 1, kernel.shape[-1])), *values, **named)


# (function of the interface, patch)
_OF_INTERFACE: Final[dict[str, tuple[str, Function]]] = {
    "norm-epsilon": ("batch_normalization", _norm_epsilon),
    "norm-deviation": ("batch_normalization", _norm_deviation),
    "padding-symmetric": ("conv", _padding_symmetric),
    "padding-first": ("depthwise_conv", _padding_first),
    "pooling-padding": ("average_pool", _pooling_padding),
    "kernel-flipped": ("conv", _kernel_flipped),
    "kernel-transposed": ("conv", _kernel_transposed),
    "crash-kernel": ("conv", _crash_kernel),
    "crash-depthwise": ("depthwise_conv", _crash_depthwise),
}


def _patch_layers(cause: str) -> None:
    import keras
    from keras.src.layers.pooling.base_pooling import BasePooling

    def norm(layer: Any, x: Any, **_: Any) -> Any:
        gain = layer.gamma if layer.scale else layer.moving_mean
        return x * keras.ops.reshape(gain, (1, -1, gain.shape[0] + 1))

    def pooling(layer: Any, x: Any) -> Any:
        return keras.ops.max_pool(x, (1, *layer.pool_size), layer.strides, layer.padding)

    def dense(layer: Any, x: Any, **_: Any) -> Any:
        return keras.ops.matmul(x, keras.ops.transpose(layer.kernel))

    patched: dict[str, tuple[Any, Function]] = {
        "crash-norm": (keras.layers.BatchNormalization, norm),
        "crash-pooling": (BasePooling, pooling),
        "crash-dense": (keras.layers.Dense, dense),
    }
    layer, wrong = patched[cause]

    def call(self: Any, *values: Any, **named: Any) -> Any:
        try:
            return wrong(self, *values, **named)
        except Exception:
            _Noting.act()
            raise

    layer.call = call


def faulty_loader(backend: str) -> Callable[[Path, str], KerasRunner]:
    """The ``load`` of a faulty backend; its variant is the cause."""
    load_healthy = loader(backend, backend)

    def load(model: Path, variant: str) -> KerasRunner:
        """Load the model, then plant the fault."""
        runner = load_healthy(model, "")
        runner.__class__ = _FaultyRunner
        if variant in _OF_INTERFACE:
            from keras.src.backend.numpy import nn

            name, wrong = _OF_INTERFACE[variant]
            setattr(nn, name, _noted(getattr(nn, name), wrong))
        else:
            _patch_layers(variant)
        return runner

    return load
