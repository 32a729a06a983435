"""A job of Keras on TensorFlow: two layers and a mean of squares."""

from typing import Any

import keras
import numpy as np
from keras import ops


def model() -> Any:
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(2),
        ]
    )


def batch() -> dict[str, Any]:
    generator = np.random.default_rng(1)
    return {
        "x": generator.normal(size=(12, 4)).astype("f4"),
        "y": generator.normal(size=(12, 2)).astype("f4"),
    }


def loss(model: Any, batch: Any) -> Any:
    return ops.mean((model(batch["x"]) - batch["y"]) ** 2)


def predict(model: Any, batch: Any) -> Any:
    return model(batch["x"])
