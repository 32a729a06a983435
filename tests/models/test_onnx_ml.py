"""Exports of scikit-learn: nodes of ``ai.onnx.ml`` written out, with onnxruntime as the root."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tapml.importing.importer import import_model
from tapml.models.huggingface import load_any
from tapml.models.onnx_file import OnnxModel
from tapml.rooting.own_forward import root_wrapper
from tapml.rooting.rooting import root
from tapml_targets.errors import UnsupportedOperatorError

_ML = "ai.onnx.ml"
# Two trees: a root with a leaf and a branch, and a leaf alone.
_TREES: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0, 0, 0, 1],
    "nodes_nodeids": [0, 1, 2, 3, 4, 0],
    "nodes_featureids": [1, 0, 2, 0, 0, 0],
    "nodes_values": [0.1, 0.0, -0.3, 0.0, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 3, 0, 0, 0],
    "nodes_falsenodeids": [2, 0, 4, 0, 0, 0],
}


def write(path: Path, nodes: list[Any], outputs: list[Any], *, opset: int = 13) -> Path:
    """A model of `nodes` on x ``[batch, 3]``."""
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 3])
    graph = helper.make_graph(nodes, "net", [given], outputs)
    ids = [helper.make_opsetid("", opset), helper.make_opsetid(_ML, 3)]
    onnx.save(helper.make_model(graph, opset_imports=ids, ir_version=8), path)
    np.save(path.parent / "x.npy", np.random.default_rng(0).standard_normal((6, 3), np.float32))
    return path


def classifier(labels: dict[str, Any], classes: list[int]) -> list[Any]:
    """Scaled features, a forest, and its map of classes."""
    leaves = {
        "class_treeids": [0, 0, 0, 1],
        "class_nodeids": [1, 3, 4, 0],
        "class_ids": classes,
        "class_weights": [0.9, 0.3, 0.2, 0.1],
    }
    node = helper.make_node
    return [
        node("Scaler", ["x"], ["s"], domain=_ML, offset=[0.1, 0.0, -0.2], scale=[2.0, 1.0, 0.5]),
        node("Normalizer", ["s"], ["n"], domain=_ML, norm="L2"),
        node(
            "TreeEnsembleClassifier", ["n"], ["label", "p"], domain=_ML,
            post_transform="NONE", **_TREES, **leaves, **labels,
        ),
        node("ZipMap", ["p"], ["map"], domain=_ML, **labels),
    ]  # fmt: skip


@pytest.mark.parametrize("classes", [[0, 1, 2, 2], [0, 0, 0, 0], [1, 1, 1, 1]])
def test_a_forest_with_labels_of_text_gives_what_onnxruntime_gives(
    tmp_path: Path, classes: list[int]
) -> None:
    labels = {"classlabels_strings": ["no", "yes", "perhaps"][: max(*classes, 1) + 1]}
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.STRING, [None]),
        helper.make_value_info(
            "map",
            helper.make_sequence_type_proto(
                helper.make_map_type_proto(
                    TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
                )
            ),
        ),
    ]
    path = write(tmp_path / "net.onnx", classifier(labels, classes), outputs, opset=9)
    model = load_any(path, inputs=[tmp_path / "x.npy"])
    assert isinstance(model, OnnxModel)
    assert [(each.name, each.dtype) for each in model.signature.outputs] == [
        ("label", "int64"),
        ("p", "float32"),
    ]
    assert root_wrapper(model) < 1e-6
    report = root(model, import_model(model))
    assert report.worst is not None
    assert report.worst.ratio < 1


def test_a_regressor_of_trees_joins_a_linear_one(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [
        node("Imputer", ["x"], ["i"], domain=_ML, imputed_value_floats=[0.5],
             replaced_value_float=float("nan")),
        node("LinearRegressor", ["i"], ["a"], domain=_ML, coefficients=[1.0, -2.0, 0.5],
             intercepts=[0.25]),
        node("TreeEnsembleRegressor", ["i"], ["b"], domain=_ML, n_targets=1, **_TREES,
             target_treeids=[0, 0, 0, 1], target_nodeids=[1, 3, 4, 0], target_ids=[0, 0, 0, 0],
             target_weights=[1.0, 2.0, -3.0, 0.5], base_values=[0.125]),
        node("Add", ["a", "b"], ["y"]),
    ]  # fmt: skip
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 1])
    path = write(tmp_path / "net.onnx", nodes, [output])
    array = np.load(tmp_path / "x.npy")
    array[0, 1] = np.nan
    np.save(tmp_path / "x.npy", array)
    model = load_any(path, inputs=[tmp_path / "x.npy"])
    assert root_wrapper(model) < 1e-6


def test_a_node_that_is_not_written_out_is_named(tmp_path: Path) -> None:
    node = helper.make_node("LabelEncoder", ["x"], ["y"], name="enc", domain=_ML,
                            keys_floats=[1.0], values_floats=[2.0])  # fmt: skip
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 3])
    with pytest.raises(UnsupportedOperatorError, match=r"ai.onnx.ml.LabelEncoder in node 'enc'"):
        load_any(write(tmp_path / "net.onnx", [node], [output]))
