"""LSTM, GRU and RNN nodes compute what onnxruntime computes for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tapml.importing.importer import import_model
from tapml.models.huggingface import load_any
from tapml.rooting.own_forward import root_wrapper
from tapml.rooting.rooting import root
from tapml_targets.errors import UnsupportedOperatorError

STEPS, BATCH, WIDTH, HIDDEN = 4, 2, 3, 5


def write(path: Path, *, lengths: bool = False) -> Path:
    """Two directions of an LSTM with states given, two kinds of GRU and an RNN behind it."""
    random = np.random.default_rng(1)
    weights = []

    def weight(name: str, *shape: int) -> str:
        values = (random.standard_normal(shape) * 0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(values, name))
        return name

    def layer(kind: str, source: str, name: str, gates: int, width: int, ways: int) -> list[str]:
        return [
            source,
            weight(f"{name}.w", ways, gates * HIDDEN, width),
            weight(f"{name}.r", ways, gates * HIDDEN, HIDDEN),
            weight(f"{name}.b", ways, 2 * gates * HIDDEN),
        ]

    node, states, given = helper.make_node, ["h", "c"], "lengths" if lengths else ""
    weights.append(numpy_helper.from_array(np.array([STEPS, BATCH, -1]), "flat"))
    weights.append(numpy_helper.from_array(np.array([STEPS, STEPS - 1], np.int32), "lengths"))
    hidden = {"hidden_size": HIDDEN}
    nodes = [
        node(
            "LSTM", [*layer("LSTM", "x", "first", 4, WIDTH, 2), given, *states],
            ["y", "last", "memory"], name="/first/LSTM", direction="bidirectional", **hidden,
        ),
        node("Transpose", ["y"], ["t"], perm=[0, 2, 1, 3], name="/transpose"),
        node("Reshape", ["t", "flat"], ["f"], name="/reshape"),
        node(
            "GRU", layer("GRU", "f", "second", 3, 2 * HIDDEN, 1), ["g"], name="/second/GRU",
            linear_before_reset=1, **hidden,
        ),
        node("Reshape", ["g", "flat"], ["gf"], name="/again"),
        node(
            "GRU", layer("GRU", "gf", "third", 3, HIDDEN, 1), ["", "g2"], name="/third/GRU",
            direction="reverse", **hidden,
        ),
        node(
            "RNN", layer("RNN", "gf", "fourth", 1, HIDDEN, 1), ["", "r"], name="/fourth/RNN",
            activations=["Relu"], **hidden,
        ),
    ]  # fmt: skip

    def value(name: str, *shape: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        nodes, "net",
        [value("x", STEPS, BATCH, WIDTH), *(value(each, 2, BATCH, HIDDEN) for each in states)],
        [
            *(value(each, 2, BATCH, HIDDEN) for each in ("last", "memory")),
            *(value(each, 1, BATCH, HIDDEN) for each in ("g2", "r")),
        ],
        weights,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def test_they_are_written_out_step_by_step(tmp_path: Path) -> None:
    model = load_any(write(tmp_path / "net.onnx"))
    assert root_wrapper(model) < 1e-5
    report = root(model, import_model(model))
    assert report.worst is not None
    assert report.worst.ratio < 1


def test_one_with_lengths_of_its_sequences_is_refused_by_name(tmp_path: Path) -> None:
    model = load_any(write(tmp_path / "net.onnx", lengths=True))
    with pytest.raises(UnsupportedOperatorError, match="LSTM in /first/LSTM"):
        import_model(model)
