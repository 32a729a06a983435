"""A Keras model with BatchNormalization; `SYNCHRONIZED` says over which samples."""

import os
from typing import Any

import keras
import numpy as np
from keras import ops

SYNCHRONIZED = os.environ.get("TAPML_FAULT") == "synchronized"


def model() -> Any:
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(synchronized=SYNCHRONIZED),
            keras.layers.Dense(2),
        ]
    )


def batch() -> dict[str, Any]:
    generator = np.random.default_rng(1)
    return {
        "x": generator.normal(size=(24, 4)).astype("f4"),
        "y": generator.normal(size=(24, 2)).astype("f4"),
    }


def loss(model: Any, batch: Any) -> Any:
    return ops.mean((model(batch["x"], training=True) - batch["y"]) ** 2)


def predict(model: Any, batch: Any) -> Any:
    return model(batch["x"], training=False)
