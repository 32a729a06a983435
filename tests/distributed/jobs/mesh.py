"""A job of JAX: two layers and a mean of squares."""

from typing import Any

import jax.numpy as jnp
import numpy as np


def parameters() -> dict[str, Any]:
    generator = np.random.default_rng(0)
    return {
        "inner": {
            "weight": generator.normal(size=(4, 8)).astype("f4"),
            "bias": np.zeros(8, "f4"),
        },
        "outer": generator.normal(size=(8, 2)).astype("f4"),
    }


def batch() -> dict[str, Any]:
    generator = np.random.default_rng(1)
    return {
        "x": generator.normal(size=(16, 4)).astype("f4"),
        "y": generator.normal(size=(16, 2)).astype("f4"),
    }


def predict(parameters: Any, batch: Any) -> Any:
    inner = parameters["inner"]
    return jnp.tanh(batch["x"] @ inner["weight"] + inner["bias"]) @ parameters["outer"]


def loss(parameters: Any, batch: Any) -> Any:
    return ((predict(parameters, batch) - batch["y"]) ** 2).mean()
