"""A small convolutional network in ONNX with weights and data from seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

NODES = ["conv1", "norm1", "relu1", "pool1", "flat", "logits", "classes"]


def write_cnn(folder: Path) -> Path:
    """Write ``cnn.onnx``: 1 x 8 x 8 images to 10 classes."""
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int, scale: float = 0.3) -> Any:
        values = random.normal(size=shape) * scale
        return numpy_helper.from_array(values.astype(np.float32), name)

    variance = numpy_helper.from_array(np.full(8, 0.02, np.float32), "variance")
    nodes = [
        helper.make_node("Conv", ["image", "w1", "b1"], ["conv1"], pads=[1, 1, 1, 1]),
        helper.make_node(
            "BatchNormalization", ["conv1", "gain", "bias", "mean", "variance"], ["norm1"],
            epsilon=1e-2,
        ),
        helper.make_node("Relu", ["norm1"], ["relu1"]),
        helper.make_node("MaxPool", ["relu1"], ["pool1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pool1"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w2", "b2"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["classes"], axis=1),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "cnn",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 1, 8, 8])],
        [helper.make_tensor_value_info("classes", TensorProto.FLOAT, ["n", 10])],
        [
            weight("w1", 8, 1, 3, 3), weight("b1", 8), weight("gain", 8), weight("bias", 8),
            weight("mean", 8), variance, weight("w2", 128, 10), weight("b2", 10),
        ],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = folder / "cnn.onnx"
    onnx.save(model, path)
    return path


def write_noise(folder: Path, seed: dict[str, float]) -> Path:
    """Write ``noise.onnx``: random numbers are added to the images."""
    nodes = [
        helper.make_node("RandomNormalLike", ["image"], ["noise"], **seed),
        helper.make_node("Add", ["image", "noise"], ["noisy"]),
    ]
    graph = helper.make_graph(
        nodes,
        "noise",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 1, 8, 8])],
        [helper.make_tensor_value_info("noisy", TensorProto.FLOAT, ["n", 1, 8, 8])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = folder / "noise.onnx"
    onnx.save(model, path)
    return path


def write_determinant(folder: Path) -> Path:
    """Write ``determinant.onnx``: of squares [n, 3, 3], which OpenVINO does not convert."""
    graph = helper.make_graph(
        [helper.make_node("Det", ["x"], ["y"])],
        "determinant",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = folder / "determinant.onnx"
    onnx.save(model, path)
    return path


def make_images(count: int = 32) -> dict[str, np.ndarray[Any, Any]]:
    """Seeded images and labels."""
    random = np.random.default_rng(1)
    return {
        "x": random.normal(size=(count, 1, 8, 8)).astype(np.float32),
        "y": random.integers(0, 10, count),
    }


def write_mixing(folder: Path, *, places: bool = False) -> Path:
    """Write ``mixing.onnx``: rows [n, 3] over the largest value of all.

    `places`: also where they are not zero, as many as there are.
    """
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
        helper.make_node("Div", ["x", "largest"], ["y"]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])]
    if places:
        nodes.append(helper.make_node("NonZero", ["x"], ["places"]))
        outputs.append(helper.make_tensor_value_info("places", TensorProto.INT64, [2, "found"]))
    graph = helper.make_graph(
        nodes, "mixing", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])], outputs
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = folder / "mixing.onnx"
    onnx.save(model, path)
    return path
