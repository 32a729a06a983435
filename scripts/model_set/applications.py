"""The graphs of ``keras.applications``: seeded weights, the last layer fitted on digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from scripts.model_set.datasets import DIGIT_CLASSES, digits

# Each with the smallest images that it takes; the paper's 13, then newer ones.
APPLICATIONS: Final[dict[str, int]] = {
    "Xception": 71,
    "VGG16": 32,
    "VGG19": 32,
    "ResNet50": 32,
    "InceptionV3": 75,
    "InceptionResNetV2": 75,
    "MobileNet": 32,
    "MobileNetV2": 32,
    "DenseNet121": 32,
    "DenseNet169": 32,
    "DenseNet201": 32,
    "NASNetMobile": 32,
    "NASNetLarge": 32,
    "EfficientNetB0": 32,
    "MobileNetV3Small": 32,
    "ConvNeXtTiny": 32,
}
_CALIBRATING: Final = 32
_FITTED: Final = 160
_HELD_OUT: Final = 16


def make_application(name: str, model_file: Path, data_file: Path) -> float:
    """Build a graph; its accuracy on what it has not seen.

    Batch normalization takes its statistics from one batch of digits, so that values neither
    vanish nor explode, and the last layer is a logistic regression on the features.
    """
    import keras
    from sklearn.linear_model import LogisticRegression

    keras.utils.set_random_seed(1)
    size = APPLICATIONS[name]
    data = digits(size, 3)
    images = data.inputs * 255 if "Net" in name and name[0] in "EMC" else data.inputs * 2 - 1
    base = getattr(keras.applications, name)(
        include_top=False, weights=None, input_shape=(size, size, 3), pooling="avg"
    )
    norms = [each for each in base.layers if isinstance(each, keras.layers.BatchNormalization)]
    momenta = [each.momentum for each in norms]
    for each in norms:
        each.momentum = 0.0
    base(images[:_CALIBRATING], training=True)
    for each, momentum in zip(norms, momenta, strict=True):
        each.momentum = momentum
    features = base.predict(images[: _FITTED + _HELD_OUT], batch_size=32, verbose=0)
    middle, scale = features.mean(axis=0), features.std(axis=0) + 1e-6 * np.abs(features).max()
    fit: Any = LogisticRegression(max_iter=200).fit(
        (features[:_FITTED] - middle) / scale, data.targets[:_FITTED]
    )
    last = keras.layers.Dense(DIGIT_CLASSES, activation="softmax", name="result")
    model = keras.Model(base.input, last(base.output), name=name.lower())
    kernel = (fit.coef_ / scale).T
    last.set_weights([kernel, fit.intercept_ - middle @ kernel])
    model.save(model_file)
    held_out = slice(_FITTED, _FITTED + _HELD_OUT)
    np.savez(data_file, x=images[held_out], y=data.targets[held_out])
    outputs = model.predict(images[held_out], verbose=0)
    return float((outputs.argmax(axis=1) == data.targets[held_out]).mean())
