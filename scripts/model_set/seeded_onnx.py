"""ONNX classifiers of digits: seeded layers, and a last one fitted on their features.

Their strided windows pad one side more than the other, their average pools pad, and one convolves
each channel by itself: there CRADLE's causes act.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from scripts.model_set.datasets import DIGIT_CLASSES, Array, digits

_FITTED: Final = 480
_HELD_OUT: Final = 64
_SIZE: Final = 8
# Layers by model: kind, channels, attributes.
SEEDED_ONNX: Final[dict[str, tuple[tuple[str, int, dict[str, Any]], ...]]] = {
    "digits-same-upper": (
        ("Conv", 8, {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ("BatchNormalization", 8, {}),
        ("Relu", 8, {}),
        ("AveragePool", 8, {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1]}),
        ("Conv", 16, {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"}),
        ("Relu", 16, {}),
    ),
    "digits-uneven-pads": (
        ("Conv", 6, {"kernel_shape": [4, 4], "pads": [1, 1, 2, 2]}),
        ("BatchNormalization", 6, {}),
        ("Sigmoid", 6, {}),
        ("MaxPool", 6, {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Conv", 12, {"kernel_shape": [3, 3], "pads": [0, 0, 2, 2]}),
        ("BatchNormalization", 12, {}),
        ("Tanh", 12, {}),
        ("AveragePool", 12, {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ),
    "digits-depthwise": (
        ("Conv", 8, {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER"}),
        ("BatchNormalization", 8, {}),
        ("Relu", 8, {}),
        ("Conv", 16, {"kernel_shape": [3, 3], "strides": [2, 2], "group": 8,
                      "auto_pad": "SAME_UPPER"}),
        ("BatchNormalization", 16, {}),
        ("HardSwish", 16, {}),
        ("Conv", 16, {"kernel_shape": [1, 1]}),
        ("GlobalAveragePool", 16, {}),
    ),
}  # fmt: skip


def make_seeded(name: str, model_file: Path, data_file: Path) -> float:
    """Write a model and its data; its accuracy on what it has not seen."""
    from sklearn.linear_model import LogisticRegression

    data = digits(_SIZE)
    images = data.inputs.transpose(0, 3, 1, 2)[: _FITTED + _HELD_OUT]
    labels = data.targets[: len(images)]
    layers = SEEDED_ONNX[name]
    features = ReferenceEvaluator(_model(layers, ())).run(None, {"image": images})[0]
    fitted = LogisticRegression(max_iter=500).fit(features[:_FITTED], labels[:_FITTED])
    last = (fitted.coef_.astype(np.float32), fitted.intercept_.astype(np.float32))
    onnx.save(_model(layers, last), model_file)
    np.savez(data_file, x=images[_FITTED:], y=labels[_FITTED:])
    return float(fitted.score(features[_FITTED:], labels[_FITTED:]))


def _model(layers: Sequence[tuple[str, int, dict[str, Any]]], last: Sequence[Array]) -> Any:
    """The layers and a flattening; with the last layer's weights, also what follows to classes."""
    random = np.random.default_rng(2)
    nodes, weights, value, channels = [], [], "image", 1
    for number, (kind, width, attributes) in enumerate(layers):
        name = f"{kind.lower()}{number}"
        arrays = _weights(kind, channels, width, attributes, random)
        names = [f"{name}_w{at}" for at in range(len(arrays))]
        weights += [numpy_helper.from_array(*each) for each in zip(arrays, names, strict=True)]
        nodes.append(helper.make_node(kind, [value, *names], [name], name=name, **attributes))
        value, channels = name, width
    nodes.append(helper.make_node("Flatten", [value], ["features"]))
    output = "features"
    shape: list[str | int | None] = ["n", None]
    if last:
        weights += [numpy_helper.from_array(last[0], "kernel"),
                    numpy_helper.from_array(last[1], "bias")]  # fmt: skip
        nodes.append(helper.make_node("Gemm", ["features", "kernel", "bias"], ["logits"], transB=1))
        nodes.append(helper.make_node("Softmax", ["logits"], ["classes"]))
        output, shape = "classes", ["n", DIGIT_CLASSES]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 1, _SIZE, _SIZE])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _weights(
    kind: str, channels: int, width: int, attributes: dict[str, Any], random: Any
) -> list[Array]:
    if kind == "Conv":
        window = attributes["kernel_shape"]
        read = channels // attributes.get("group", 1)
        scale = (read * np.prod(window)) ** -0.5
        kernel = random.normal(size=(width, read, *window)) * scale
        return [each.astype(np.float32) for each in (kernel, random.normal(size=width) * 0.1)]
    if kind == "BatchNormalization":
        gain = random.normal(1, 0.2, width)
        bias, mean = random.normal(0, 0.2, (2, width))
        # Small variances, for which an epsilon counts.
        variance = random.uniform(1e-3, 0.1, width)
        return [each.astype(np.float32) for each in (gain, bias, mean, variance)]
    return []
