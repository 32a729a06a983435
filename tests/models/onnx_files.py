"""A small ONNX file with what exporters write: shapes computed in the graph, two outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def make_onnx(path: Path, *, activation: str = "Relu", domain: str = "", outside: str = "") -> Path:
    """Write a convolution, pooling, a computed reshape, classes and the two best of them.

    `activation` is an operator of `domain`; `outside` is where its larger tensors lie.
    """
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = (random.standard_normal(shape) * 0.2).astype(np.float32)
        return numpy_helper.from_array(values, name)

    def number(name: str, value: int | list[int]) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(value, dtype=np.int64), name)

    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c"], name="/first/Conv", pads=[1, 1, 1, 1]),
        node(activation, ["c"], ["a"], name="/first/act", domain=domain),
        node("MaxPool", ["a"], ["p"], name="/first/pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Shape", ["p"], ["shape"], name="/shape"),
        node("Gather", ["shape", "zero"], ["n"], name="/gather"),
        node("Unsqueeze", ["n", "axis"], ["rows"], name="/unsqueeze"),
        node("Concat", ["rows", "rest"], ["flat"], name="/concat", axis=0),
        node("Reshape", ["p", "flat"], ["f"], name="/reshape"),
        node("Gemm", ["f", "w2", "b2"], ["g"], name="/head/Gemm", transB=1),
        node("Softmax", ["g"], ["classes"], name="/head/Softmax", axis=1),
        node("ArgMax", ["g"], ["best"], name="/head/ArgMax", axis=1, keepdims=0),
    ]
    weights = [weight("w1", 4, 2, 3, 3), weight("b1", 4), weight("w2", 5, 64), weight("b2", 5)]
    numbers = [number("zero", 0), number("axis", [0]), number("rest", [-1])]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "net",
        [value("x", TensorProto.FLOAT, ["N", 2, 8, 8])],
        [value("classes", TensorProto.FLOAT, ["N", 5]), value("best", TensorProto.INT64, ["N"])],
        [*weights, *numbers],
    )
    opsets = [helper.make_opsetid("", 17)] + [helper.make_opsetid(domain, 1)] * bool(domain)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    if outside:
        onnx.save(model, path, save_as_external_data=True, location=outside, size_threshold=64)
    else:
        onnx.save(model, path)
    return path
