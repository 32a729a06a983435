"""Layers rebuilt from a library's own calls are what Keras makes of them, where Keras is right.

``exhaustive`` has JAX, which compiles each call, and TensorFlow, whose import is the dearest.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tapml.backends.finding import find_backend
from tapml.backends.keras_layers import activated
from tapml.comparing.run import environment_of
from tapml.isolate.pool import Pool
from tapml_targets.errors import UnsupportedOperatorError

JOB = f"{__name__}:differing"
WRONG_TODAY = {
    # Keras 3.15.1 counts the padding, and normalizes the last axis: see docs/bugs.
    "keras-torch": ["average_same", "layer_norm_axis"],
    "keras-jax": [],
    "keras-tensorflow": [],
}


def differing(given: dict[str, str]) -> list[str]:
    """The names of the layers whose two results differ."""
    import keras

    from tapml.backends.keras_runner import KerasRunner

    layers = keras.layers
    keras.utils.set_random_seed(0)
    random = {"beta_initializer": "random_normal", "gamma_initializer": "random_uniform"}
    moving = {"moving_mean_initializer": "random_normal",
              "moving_variance_initializer": keras.initializers.RandomUniform(0.5, 2)}  # fmt: skip
    image = keras.Input((4, 6, 4), name="image")
    made = [
        layers.Conv2D(6, 3, strides=2, padding="same", activation="relu", name="conv_same"),
        layers.Conv2D(6, (2, 3), dilation_rate=2, activation="gelu", name="conv_dilated"),
        layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2, name="depthwise"),
        layers.AveragePooling2D(3, 2, padding="valid", name="average_valid"),
        layers.AveragePooling2D(3, 2, padding="same", name="average_same"),
        layers.MaxPooling2D(3, 2, padding="same", name="max_same"),
        layers.BatchNormalization(name="batch_norm", **random, **moving),
        layers.LayerNormalization(name="layer_norm", **random),
        layers.LayerNormalization(axis=1, name="layer_norm_axis"),
        layers.Dense(5, activation="softmax", name="dense"),
        *(layers.Dense(3, activation=each, name=each) for each in ("silu", "selu", "log_softmax")),
    ]
    model = keras.Model(image, [each(image) for each in made])
    package = find_backend(given["backend"]).package
    runner = KerasRunner(model, given["library"], f"{package}.own_calls")
    x = np.random.default_rng(0).normal(size=(2, 4, 6, 4)).astype(np.float32)
    # Of arrays, Keras asks TensorFlow here if it seems to be imported.
    layers.Rescaling(2.0)(x)
    found = []
    for each in made:
        (own,), (whole,) = runner.rebuild(each.name, [x]), runner.replay(each.name, [x])
        if own.shape != whole.shape or np.abs(own - whole).max() > 1e-5 * np.abs(whole).max():
            found.append(each.name)
    return found


def check(name: str) -> None:
    """One backend, in a process of its own."""
    environment = environment_of(find_backend(name))
    with Pool([JOB], workers=1, environment=environment, deadline_seconds=500.0) as pool:
        found = pool.submit(JOB, {"backend": name, "library": name.partition("-")[2]}).result()
    assert found == WRONG_TODAY[name]


def test_own_calls_give_what_keras_gives() -> None:
    check("keras-torch")


def test_an_activation_that_is_a_layer_is_not_taken_for_none() -> None:
    layer = SimpleNamespace(activation=SimpleNamespace())
    with pytest.raises(UnsupportedOperatorError, match="SimpleNamespace"):
        activated(layer, 1.0, object())
