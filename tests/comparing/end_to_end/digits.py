"""Trains a small classifier of scikit-learn's digits in Keras; run in a process of its own."""

from __future__ import annotations

import sys

import keras
import numpy as np
from sklearn.datasets import load_digits


def main(model: str, data: str) -> None:
    """Write the model and 200 images that it was not trained on."""
    keras.utils.set_random_seed(1)
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[..., None]
    layers = keras.layers
    features = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(8, 3, padding="same", activation="relu", name="conv1"),
            # Keras 3.15.1 counts the padding on PyTorch.
            layers.AveragePooling2D(3, 2, padding="same", name="pool1"),
        ],
        name="features",
    )
    image = keras.Input((8, 8, 1), name="image")
    value = layers.Conv2D(16, 3, padding="same", activation="relu", name="conv2")(features(image))
    value = layers.Flatten(name="flat")(layers.BatchNormalization(name="norm")(value))
    classes = layers.Dense(10, activation="softmax", name="classes")(value)
    classifier = keras.Model(image, classes)
    classifier.compile("adam", "sparse_categorical_crossentropy")
    classifier.fit(images[:1500], digits.target[:1500], epochs=2, batch_size=64, verbose=0)
    classifier.save(model)
    np.savez(data, image=images[1500:1700], y=digits.target[1500:1700])


if __name__ == "__main__":
    main(*sys.argv[1:])
