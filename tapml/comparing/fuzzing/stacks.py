"""Stacks of layers as ONNX models: what a case of the search says, built with seeded weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

CHANNELS: Final = 4
SIDE: Final = 9
INSTANCES: Final = 3
_OPSET: Final = 18
_SEED: Final = 7

Layer: TypeAlias = tuple[str, int]
"""A key of :data:`LAYERS`, and which of its settings: any whole number, modulo their count."""

_PADS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"pads": [1, 1, 1, 1]},
    {"pads": [0, 0, 1, 1]},
    {"auto_pad": "SAME_UPPER"},
    {"auto_pad": "SAME_LOWER"},
)
_WINDOWS: Final = tuple(
    {"kernel_shape": [size, size], "strides": [step, step], **pads}
    for pads in _PADS
    for size in (3, 2)
    for step in (1, 2)
)
LAYERS: Final[Mapping[str, tuple[dict[str, Any], ...]]] = {
    **{name: ({},) for name in ("Relu", "Sigmoid", "Tanh", "Softsign", "Softplus", "Erf", "Mish",
                                "HardSwish", "Selu")},
    "Elu": ({}, {"alpha": 0.3}),
    "Celu": ({}, {"alpha": 0.3}),
    "LeakyRelu": ({}, {"alpha": -0.5}),
    "HardSigmoid": ({}, {"alpha": 0.7, "beta": 0.1}),
    "ThresholdedRelu": ({}, {"alpha": 0.2}),
    "Softmax": tuple({"axis": axis} for axis in (-1, 1, 0, 2)),
    "LogSoftmax": tuple({"axis": axis} for axis in (-1, 1)),
    "LpNormalization": tuple({"axis": axis, "p": p} for axis in (1, -1) for p in (2, 1)),
    "Conv": (*_WINDOWS, {"dilations": [2, 2]}, {"group": 2}, {"group": CHANNELS}),
    "ConvTranspose": tuple(
        {"strides": [step, step], **pads} for pads in _PADS for step in (1, 2)
    ),
    "MaxPool": (*_WINDOWS, {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
                {"kernel_shape": [2, 2], "dilations": [2, 2]}),
    "AveragePool": (
        *_WINDOWS,
        *({**each, "count_include_pad": 1} for each in _WINDOWS),
        {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1,
         "count_include_pad": 1},
    ),
    "LpPool": tuple({"kernel_shape": [2, 2], "p": p} for p in (2, 1, 3)),
    "BatchNormalization": ({}, {"epsilon": 0.1}),
    "InstanceNormalization": ({}, {"epsilon": 0.1}),
    "LayerNormalization": ({"axis": -1}, {"axis": 1}),
    "LRN": tuple({"size": size} for size in (3, 5, 7)),
    "MeanVarianceNormalization": ({"axes": [0, 2, 3]}, {"axes": [2, 3]}),
    "Pad": tuple({"mode": mode} for mode in ("reflect", "edge", "constant")),
    "Resize": tuple(
        {"mode": mode, "coordinate_transformation_mode": how, **more}
        for mode, more in (
            ("nearest", {"nearest_mode": "floor"}),
            ("nearest", {"nearest_mode": "round_prefer_ceil"}),
            ("linear", {}),
            ("cubic", {}),
        )
        for how in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    ),
    "Transpose": ({"perm": [0, 1, 3, 2]},),
    "CumSum": ({}, {"exclusive": 1}, {"reverse": 1}),
}  # fmt: skip


def stack(layers: Sequence[Layer]) -> Any:
    """The model of some layers: ``x`` [n, 4, 9, 9] to ``y``, float32.

    Returns
    -------
    onnx.ModelProto
        Checked with its shapes.

    Raises
    ------
    ValueError, RuntimeError
        If the layers do not fit, as shape inference finds.
    """
    from onnx import TensorProto, checker, helper, numpy_helper, shape_inference

    random = np.random.default_rng(_SEED)
    nodes, weights, value = [], [], "x"
    for number, (kind, choice) in enumerate(layers):
        settings = LAYERS[kind][choice % len(LAYERS[kind])]
        name = f"{kind.lower()}{number}"
        arrays = _weights(kind, settings, random)
        names = [f"{name}_w{at}" if each is not None else "" for at, each in enumerate(arrays)]
        weights += [
            numpy_helper.from_array(each, each_name)
            for each, each_name in zip(arrays, names, strict=True)
            if each is not None
        ]
        nodes.append(helper.make_node(kind, [value, *names], [name], name=name, **settings))
        value = name
    shape = ["n", CHANNELS, SIDE, SIDE]
    graph = helper.make_graph(
        nodes,
        "stack",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, None)],
        weights,
    )
    opset = [helper.make_opsetid("", _OPSET)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=9)
    inferred = shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    checker.check_model(inferred, full_check=True)
    for info in (*inferred.graph.value_info, *inferred.graph.output):
        if any(each.HasField("dim_value") and each.dim_value < 1
               for each in info.type.tensor_type.shape.dim):  # fmt: skip
            raise ValueError(f"{info.name} has no element")
    return inferred


def inputs() -> dict[str, Any]:
    """Seeded instances for every stack, shape (3, 4, 9, 9), of both signs."""
    shape = (INSTANCES, CHANNELS, SIDE, SIDE)
    return {"x": np.random.default_rng(_SEED).normal(size=shape).astype(np.float32)}


def _weights(kind: str, settings: Mapping[str, Any], random: Any) -> list[Any]:
    """What a layer reads besides its value; None is an input that is left out."""

    def floats(*shape: int) -> Any:
        return random.normal(size=shape).astype(np.float32) / 2

    width = CHANNELS // settings.get("group", 1)
    window = settings.get("kernel_shape", [3, 3])
    found: dict[str, tuple[Any, ...]] = {
        "Conv": (floats(CHANNELS, width, *window), floats(CHANNELS)),
        "ConvTranspose": (floats(CHANNELS, CHANNELS, 3, 3), floats(CHANNELS)),
        "BatchNormalization": (
            floats(CHANNELS), floats(CHANNELS), floats(CHANNELS), np.full(CHANNELS, 0.5, np.float32)
        ),
        "InstanceNormalization": (floats(CHANNELS), floats(CHANNELS)),
        "LayerNormalization": (np.array([1.5], np.float32),),
        "Pad": (np.array([0, 0, 1, 0, 0, 0, 1, 2], np.int64),),
        "Resize": (None, np.array([1, 1, 1.5, 0.7], np.float32)),
        "CumSum": (np.array(2, np.int64),),
    }  # fmt: skip
    return list(found.get(kind, ()))
