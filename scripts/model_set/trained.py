"""Small Keras models, trained here with fixed seeds on data of scikit-learn and drawn roads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from scripts.model_set.datasets import DATASETS


@dataclass(frozen=True)
class Trained:
    """A model: its data set, its layers, and how long it is trained."""

    dataset: str
    build: Callable[[Any, Any], Any]
    """(layers, input) to what the last layer reads."""
    epochs: int = 3
    output: str = "softmax"
    held_out: int = 64


def _chain(value: Any, *layers: Any) -> Any:
    for each in layers:
        value = each(value)
    return value


def _dense(la: Any, x: Any) -> Any:
    return _chain(x, la.Dense(16, activation="relu"), la.Dense(16, activation="tanh"))


def _wine(la: Any, x: Any) -> Any:
    return _chain(x, la.Dense(24), la.BatchNormalization(), la.LeakyReLU(), la.Dropout(0.2))


def _cancer(la: Any, x: Any) -> Any:
    hidden = _chain(x, la.Dense(32, activation="gelu"), la.LayerNormalization())
    return la.Concatenate()([hidden, la.Dense(8, activation="elu")(x)])


def _lenet1(la: Any, x: Any) -> Any:
    return _chain(
        x,
        la.Conv2D(4, 5, activation="relu", padding="same"),
        la.MaxPooling2D(2),
        la.Conv2D(12, 5, activation="relu", padding="same"),
        la.MaxPooling2D(2),
        la.Flatten(),
    )


def _lenet4(la: Any, x: Any) -> Any:
    return _chain(
        x,
        la.Conv2D(6, 5, activation="relu", padding="same"),
        la.MaxPooling2D(2),
        la.Conv2D(16, 5, activation="relu", padding="same"),
        la.MaxPooling2D(2),
        la.Flatten(),
        la.Dense(84, activation="relu"),
    )


def _lenet5(la: Any, x: Any) -> Any:
    return la.Dense(84, activation="relu")(
        _chain(
            x,
            la.Conv2D(6, 5, activation="tanh", padding="same"),
            la.AveragePooling2D(2),
            la.Conv2D(16, 5, activation="tanh"),
            la.AveragePooling2D(2),
            la.Flatten(),
            la.Dense(120, activation="tanh"),
        )
    )


def _pooled(la: Any, x: Any) -> Any:
    return _chain(
        x,
        la.Conv2D(8, 3, strides=2, padding="same", activation="relu"),
        la.AveragePooling2D(3, 2, padding="same"),
        la.Conv2D(16, 3, padding="same", use_bias=False),
        la.BatchNormalization(),
        la.ReLU(),
        la.MaxPooling2D(3, 2, padding="same"),
        la.Flatten(),
    )


def _separable(la: Any, x: Any) -> Any:
    return _chain(
        x,
        la.SeparableConv2D(16, 3, strides=2, padding="same", activation="swish"),
        la.DepthwiseConv2D(4, padding="same", depth_multiplier=2),
        la.BatchNormalization(),
        la.Activation("relu"),
        la.DepthwiseConv2D(3, strides=2, padding="same"),
        la.GlobalAveragePooling2D(),
    )


def _residual(la: Any, x: Any) -> Any:
    value = la.Conv2D(16, 3, strides=2, padding="same")(x)
    for _ in range(2):
        inner = _chain(
            value,
            la.BatchNormalization(),
            la.ReLU(),
            la.Conv2D(16, 3, padding="same", use_bias=False),
            la.GroupNormalization(4),
            la.Activation("silu"),
            la.Conv2D(16, 3, padding="same"),
        )
        value = la.Add()([value, inner])
    return la.GlobalMaxPooling2D()(value)


def _lstm(la: Any, x: Any) -> Any:
    return _chain(x, la.LSTM(24, return_sequences=True), la.LSTM(24))


def _gru(la: Any, x: Any) -> Any:
    return _chain(x, la.Bidirectional(la.GRU(16, return_sequences=True)), la.GlobalMaxPooling1D())


def _attention(la: Any, x: Any) -> Any:
    value = la.Dense(32)(x)
    heads = la.MultiHeadAttention(4, 8)(value, value)
    value = la.LayerNormalization()(la.Add()([value, heads]))
    inner = _chain(value, la.Dense(64, activation="gelu"), la.Dense(32))
    return la.Flatten()(la.LayerNormalization()(la.Add()([value, inner])))


def _wave(la: Any, x: Any) -> Any:
    return _chain(
        x,
        la.ZeroPadding1D(1),
        la.Conv1D(24, 3, padding="causal", dilation_rate=2, activation="relu"),
        la.AveragePooling1D(2),
        la.Conv1D(24, 2, activation="softplus"),
        la.Flatten(),
    )


def _restoring(la: Any, x: Any) -> Any:
    down = la.Conv2D(8, 3, strides=2, padding="same", activation="relu")(x)
    inner = la.Conv2D(16, 3, strides=2, padding="same", activation="relu")(down)
    up = la.Conv2DTranspose(8, 3, strides=2, padding="same", activation="relu")(inner)
    joined = la.Concatenate()([down, up])
    return la.UpSampling2D(2, interpolation="bilinear")(la.Conv2D(8, 3, padding="same")(joined))


def _mobile(la: Any, x: Any) -> Any:
    value = la.Conv2D(8, 3, strides=2, padding="same", use_bias=False)(x)
    value = _chain(value, la.BatchNormalization(), la.ReLU(max_value=6.0))
    inner = _chain(
        value,
        la.Conv2D(24, 1, use_bias=False),
        la.BatchNormalization(),
        la.ReLU(max_value=6.0),
        la.DepthwiseConv2D(3, padding="same", use_bias=False),
        la.BatchNormalization(),
    )
    gate = _chain(inner, la.GlobalAveragePooling2D(keepdims=True), la.Conv2D(24, 1))
    inner = la.Multiply()([inner, la.Activation("hard_sigmoid")(gate)])
    return la.GlobalAveragePooling2D()(la.Conv2D(8, 1)(inner))


def _dave(la: Any, x: Any, *, norm: bool, dropout: bool, initializer: str) -> Any:
    """Dave-2 (Bojarski et al., 2016) as DeepXplore varies it."""
    value = la.BatchNormalization()(x) if norm else x
    for filters, kernel, stride in [(24, 5, 2), (36, 5, 2), (48, 5, 2), (64, 3, 1), (64, 3, 1)]:
        value = la.Conv2D(
            filters, kernel, strides=stride, activation="relu", kernel_initializer=initializer
        )(value)
    value = la.Flatten()(value)
    for units in (100, 50, 10):
        value = la.Dense(units, activation="relu", kernel_initializer=initializer)(value)
        value = la.Dropout(0.1)(value) if dropout else value
    return value


def _dave_kind(**kind: Any) -> Trained:
    return Trained(
        "road", lambda la, x: _dave(la, x, **kind), epochs=3, output="linear", held_out=16
    )


TRAINED: Final[dict[str, Trained]] = {
    "iris-dense": Trained("iris", _dense, 20, held_out=30),
    "wine-normalized": Trained("wine", _wine, 15, held_out=30),
    "cancer-wide": Trained("breast cancer", _cancer, 6, output="sigmoid"),
    "diabetes-dense": Trained("diabetes", _dense, 15, output="linear"),
    "lenet1": Trained("digits", _lenet1),
    "lenet4": Trained("digits", _lenet4),
    "lenet5": Trained("digits", _lenet5),
    "digits-pooled": Trained("digits", _pooled),
    "digits-separable": Trained("digits", _separable, 5),
    "digits-residual": Trained("digits", _residual),
    "digits-lstm": Trained("digit rows", _lstm, 4),
    "digits-gru": Trained("digit rows", _gru, 4),
    "digits-attention": Trained("digit rows", _attention, 6),
    "digits-wave": Trained("digit rows", _wave, 6),
    "digits-restoring": Trained("digit restoration", _restoring, 2, output="linear", held_out=16),
    "photographs-mobile": Trained("photographs", _mobile, 8),
    "dave-original": _dave_kind(norm=True, dropout=False, initializer="glorot_uniform"),
    "dave-normal-start": _dave_kind(norm=False, dropout=False, initializer="he_normal"),
    "dave-dropout": _dave_kind(norm=False, dropout=True, initializer="he_uniform"),
}


def make_trained(name: str, model_file: Path, data_file: Path) -> float:
    """Train a model; its accuracy, or mean absolute error, on what it has not seen."""
    import keras

    keras.utils.set_random_seed(1)
    trained = TRAINED[name]
    training, held_out = DATASETS[trained.dataset]().split(trained.held_out)
    image = keras.Input(training.inputs.shape[1:], name="x")
    hidden = trained.build(keras.layers, image)
    targets = training.targets
    if trained.output == "linear":
        units = targets.shape[-1]
        loss = "mean_squared_error"
    else:
        units = 1 if trained.output == "sigmoid" else int(targets.max()) + 1
        loss = "binary_crossentropy" if units == 1 else "sparse_categorical_crossentropy"
    if targets.ndim == 4:
        result = keras.layers.Conv2D(units, 3, padding="same", name="result")(hidden)
    else:
        result = keras.layers.Dense(units, activation=trained.output, name="result")(hidden)
    model = keras.Model(image, result, name=name.replace("-", "_"))
    model.compile(keras.optimizers.Adam(3e-3 if trained.output != "linear" else 1e-3), loss)
    model.fit(training.inputs, targets, batch_size=32, epochs=trained.epochs, verbose=0)
    model.save(model_file)
    np.savez(data_file, x=held_out.inputs, y=held_out.targets)
    outputs = model.predict(held_out.inputs, verbose=0)
    if trained.output == "linear":
        return float(np.abs(outputs - held_out.targets).mean())
    found = outputs[:, 0] > 0.5 if units == 1 else outputs.argmax(axis=1)
    return float((found == held_out.targets).mean())
