"""Whole models with a layer's rare setting in their middle, where libraries are known to differ.

Convolutions of seeded weights, the layer, convolutions, a classifier. Each library that gets the
setting wrong is accused at that layer, and ``docs/bugs/`` shows it alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from scripts.model_set.datasets import DIGIT_CLASSES, digits

_SIZE: Final = 8
_INSTANCES: Final = 16
_CHANNELS: Final = 3
# A transform for every image, by a column and a half.
_SHIFT: Final = np.array([1.0, 0.0, 1.5, 0.0, 1.0, 0.0, 0.0, 0.0], np.float32)


def _flat_pool(keras: Any, x: Any) -> Any:
    rows = keras.layers.Reshape((-1, _CHANNELS))(x)
    return keras.layers.AveragePooling1D(3, 2, padding="same", name="rare")(rows)


def _one_pixel(keras: Any, x: Any) -> Any:
    pixel = keras.layers.MaxPooling2D(_SIZE)(x)
    return keras.layers.AdaptiveMaxPooling2D((2, 2), name="rare")(pixel)


def _square(keras: Any, x: Any) -> Any:
    """As many channels as rows, so that a library can take one axis for the other."""
    return keras.layers.Conv2D(_SIZE, 1)(x)


def _nearest(keras: Any, x: Any) -> Any:
    five = keras.layers.Conv2D(_CHANNELS, 4)(x)
    return keras.layers.Resizing(3, 3, interpolation="nearest", name="rare")(five)


def _wrapped(keras: Any, x: Any) -> Any:
    each = keras.ops.reshape(keras.ops.mean(x, axis=(1, 2, 3)), (-1, 1))
    return keras.ops.image.affine_transform(x, each * 0 + _SHIFT, fill_mode="wrap")


# The name of the model, to what stands between its convolutions.
RARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "rare-average-pooling": _flat_pool,
    "rare-layer-normalization": lambda k, x: k.layers.LayerNormalization(axis=1, name="rare")(
        _square(k, x)
    ),
    "rare-rms-normalization": lambda k, x: k.layers.RMSNormalization(axis=1, name="rare")(
        _square(k, x)
    ),
    "rare-affine-transform": _wrapped,
    "rare-transposed-convolution": lambda k, x: k.layers.Conv2DTranspose(
        _CHANNELS, 4, strides=2, padding="same", output_padding=0, name="rare"
    )(x),
    "rare-adaptive-pooling": _one_pixel,
    "rare-max-pooling": lambda k, x: k.ops.max_pool(x, 2),
    "rare-nearest-resize": _nearest,
    "rare-bicubic-resize": lambda k, x: k.layers.Resizing(
        2 * _SIZE, 2 * _SIZE, interpolation="bicubic", name="rare"
    )(x),
    "rare-norm": lambda k, x: k.ops.norm(x, axis=-1, keepdims=True),
    "rare-symmetric-padding": lambda k, x: k.ops.pad(
        x, ((0, 0), (2, 2), (0, 0), (0, 0)), mode="symmetric"
    ),
    "rare-gaussian-blur": lambda k, x: k.ops.image.gaussian_blur(x, (3, 5), (1.0, 0.7)),
}


def make_rare(name: str, model_file: Path, data_file: Path) -> float:
    """Build a model; no score, as it is not trained."""
    import keras

    keras.utils.set_random_seed(1)
    la: Any = keras.layers
    image = keras.Input((_SIZE, _SIZE, 1), name="x")
    value = la.Conv2D(_CHANNELS, 3, padding="same", activation="relu", name="before")(image)
    value = RARE[name](keras, value)
    convolution = la.Conv1D if len(value.shape) < len(image.shape) else la.Conv2D
    value = convolution(8, 3, padding="same", activation="tanh", name="behind")(value)
    value = la.Dense(DIGIT_CLASSES, activation="softmax", name="result")(la.Flatten()(value))
    keras.Model(image, value, name=name.replace("-", "_")).save(model_file)
    np.savez(data_file, x=digits(_SIZE).inputs[-_INSTANCES:])
    return float("nan")
