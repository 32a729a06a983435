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
from tapml.models.onnx_file import OnnxModel, run_onnx
from tapml.models.onnx_ml import without_text, write_out_ml
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


def trees(source: str, **given: Any) -> Any:
    """A regressor of the trees, one target unless given otherwise."""
    leaves = {"target_treeids": [0, 0, 0, 1], "target_nodeids": [1, 3, 4, 0]}
    own = {"target_ids": [0] * 4, "target_weights": [1.0, 2.0, -3.0, 0.5], "n_targets": 1}
    return helper.make_node(
        "TreeEnsembleRegressor", [source], ["y"], name="t", domain=_ML,
        **(_TREES | leaves | own | given),
    )  # fmt: skip


def voting(classes: list[int], labels: int, **given: Any) -> Any:
    """A classifier by the trees."""
    leaves = {"class_treeids": [0, 0, 0, 1], "class_nodeids": [1, 3, 4, 0]}
    own = {"class_weights": [0.9, 0.3, 0.2, 0.1], "class_ids": classes}
    named = {"classlabels_int64s": [5, 7, 9][:labels]}
    return helper.make_node(
        "TreeEnsembleClassifier", ["x"], ["y", "p"], name="t", domain=_ML,
        **(_TREES | leaves | own | named | given),
    )  # fmt: skip


def of_six_rows(nodes: list[Any], *, opset: int = 13, element: int = TensorProto.FLOAT) -> Any:
    """A model of x ``[6, 3]`` that gives y; `places` has two of the columns."""
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [6, 3])
    made = helper.make_tensor_value_info("y", element, None)
    places = helper.make_tensor("places", TensorProto.INT64, [2], [0, 2])
    graph = helper.make_graph(nodes, "net", [given], [made], [places])
    ids = [helper.make_opsetid("", opset), helper.make_opsetid(_ML, 3)]
    return helper.make_model(graph, opset_imports=ids, ir_version=8)


def check(model: Any, rtol: float = 1e-6) -> None:
    """A model written out gives what it gives as it is."""
    rows = {"x": np.random.default_rng(0).standard_normal((6, 3), np.float32)}
    expected = run_onnx(model, rows)["y"]
    write_out_ml(model)
    np.testing.assert_allclose(run_onnx(model, rows)["y"], expected, rtol=rtol, atol=1e-6)


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
    node = helper.make_node("CategoryMapper", ["x"], ["y"], name="enc", domain=_ML,
                            cats_int64s=[1], cats_strings=["a"])  # fmt: skip
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 3])
    with pytest.raises(UnsupportedOperatorError, match=r"ai.onnx.ml.CategoryMapper in node 'enc'"):
        load_any(write(tmp_path / "net.onnx", [node], [output]))


def machine(kernel: str, classes: int, **given: Any) -> Any:
    """A support vector machine of 2 vectors for each class."""
    random = np.random.default_rng(1)
    count, pairs = 2 * classes, classes * (classes - 1) // 2
    return helper.make_node(
        "SVMClassifier", ["x"], ["y", "p"], name="svm", domain=_ML, kernel_type=kernel,
        kernel_params=[0.3, 0.1, 3.0], vectors_per_class=[2] * classes,
        classlabels_ints=list(range(5, 5 + classes)), rho=random.normal(size=pairs) * 0.1,
        support_vectors=random.normal(size=3 * count),
        coefficients=random.normal(size=(classes - 1) * count), **given,
    )  # fmt: skip


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_classes_of_a_support_vector_machine_are_those_of_onnxruntime(
    kernel: str, classes: int
) -> None:
    for output in "yp":
        node = machine(kernel, classes)
        node.output[:] = ["y", "p"] if output == "y" else ["label", "y"]
        check(of_six_rows([node], element=TensorProto.INT64 if output == "y" else 1), rtol=1e-4)
    # The label is that of the score, though the sigmoid is moved to one class.
    node = machine(kernel, 2, prob_a=[-1.5], prob_b=[2.0])
    check(of_six_rows([node], element=TensorProto.INT64), rtol=0)
    with pytest.raises(UnsupportedOperatorError, match="probabilities of 3 classes"):
        write_out_ml(of_six_rows([machine(kernel, 3, prob_a=[1.0] * 3, prob_b=[0.0] * 3)]))


def test_numbers_are_encoded_as_places_and_as_values() -> None:
    node = helper.make_node
    whole = node("Cast", ["x"], ["i"], to=TensorProto.INT64)
    hot = node("OneHotEncoder", ["i"], ["y"], domain=_ML, cats_int64s=[-1, 0, 1])
    check(of_six_rows([whole, hot]))
    keys = {"keys_int64s": [0, 1], "values_floats": [2.5, -1.0], "default_float": 9.0}
    check(of_six_rows([whole, node("LabelEncoder", ["i"], ["y"], domain=_ML, **keys)]))


def test_trees_behind_steps_of_columns_know_their_rows_and_columns() -> None:
    node = helper.make_node
    columns = {"nodes_featureids": [1, 0, 0, 0, 0, 0]}
    steps = [
        node("ArrayFeatureExtractor", ["x", "places"], ["a"], domain=_ML),
        node("Scaler", ["a"], ["s"], domain=_ML, offset=[0.1], scale=[2.0]),
        node("Concat", ["s", "x"], ["c"], axis=1),
    ]
    check(of_six_rows([*steps[:1], trees("a", **columns)]))
    check(of_six_rows([*steps, trees("c")]))
    check(of_six_rows([node("FeatureVectorizer", ["x", "x"], ["v"], domain=_ML,
                            inputdimensions=[3, 3]), trees("v")]))  # fmt: skip


@pytest.mark.parametrize("opset", [13, 18])
def test_rows_are_divided_by_their_largest(opset: int) -> None:
    check(of_six_rows([helper.make_node("Normalizer", ["x"], ["y"], domain=_ML)], opset=opset))


def test_labels_of_text_that_a_node_makes_numbers_of_are_refused() -> None:
    forest = classifier({"classlabels_strings": ["3", "5", "9"]}, [0, 1, 2, 2])[2]
    cast = helper.make_node("Cast", ["label"], ["y"], name="c", to=TensorProto.INT64)
    reshape = helper.make_node("Reshape", ["label", "places"], ["y"], name="r")
    for node, message in ((cast, "ai.onnx.Cast in node 'c'"), (reshape, "ai.onnx.Reshape")):
        with pytest.raises(UnsupportedOperatorError, match=message):
            without_text(of_six_rows([forest, node]))


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (voting([0] * 4, 1), "one class"),
        (voting([0, 1, 0, 1], 2), "leaves of both of two classes"),
        (voting([1] * 4, 2, base_values=[0.2]), "base values, and leaves of the second"),
        (voting([1] * 3, 2, class_treeids=[0] * 3, class_nodeids=[1, 1, 3],
                class_weights=[0.1] * 3), "rows without a leaf, and leaves of the second"),
        (voting([0] * 4, 2, post_transform="SOFTMAX"), "post_transform SOFTMAX, and leaves"),
        (voting([0, 1, 2, 2], 3, class_weights=[0.9, -0.3, 0.2, -0.1]), "without a leaf"),
        (trees("x", post_transform="LOGISTIC"), "LOGISTIC of one target"),
        (trees("x", n_targets=2, target_ids=[0, 1, 0, 1], base_values=[0.1, 0.2]), "of a target"),
        (trees("x", target_ids=[0, 0, 0, 1]), "target_ids outside of 0 to 0"),
        (trees("x", n_targets=1 << 40), "expected 268435456 at most"),
        (trees("x", nodes_featureids=[3, 0, 2, 0, 0, 0]), "of the 3 columns"),
        (helper.make_node("LinearRegressor", ["x"], ["y"], domain=_ML, coefficients=[1.0, 2.0, 3.0],
                          post_transform="SOFTMAX"), "SOFTMAX of one target"),
        (helper.make_node("FeatureVectorizer", ["x", "x"], ["y"], domain=_ML,
                          inputdimensions=[2, 4]), "inputdimensions"),
    ],
)  # fmt: skip
def test_what_onnxruntime_reads_in_another_way_is_refused(node: Any, message: str) -> None:
    with pytest.raises(UnsupportedOperatorError, match=message):
        write_out_ml(of_six_rows([node]))


def test_negative_weights_of_every_class_for_every_row_are_written_out() -> None:
    every = {
        "class_treeids": [0] * 9,
        "class_nodeids": [1, 1, 1, 3, 3, 3, 4, 4, 4],
        "class_ids": [0, 1, 2] * 3,
        "class_weights": [-0.1, -0.2, -0.3, -0.3, -0.1, -0.2, -0.2, -0.3, -0.1],
    }
    check(of_six_rows([voting([], 3, **every)], element=TensorProto.INT64))


def test_branches_that_share_a_child_are_read_once() -> None:
    branches = 40
    below = [*range(1, branches + 1), 0]
    shared = {
        "nodes_treeids": [0] * len(below),
        "nodes_nodeids": list(range(len(below))),
        "nodes_featureids": [0] * len(below),
        "nodes_values": [0.0] * len(below),
        "nodes_modes": ["BRANCH_LEQ"] * branches + ["LEAF"],
        "nodes_truenodeids": below,
        "nodes_falsenodeids": below,
        "target_treeids": [0],
        "target_nodeids": [branches],
        "target_ids": [0],
        "target_weights": [1.0],
    }
    model = of_six_rows([trees("x", **shared)])
    write_out_ml(model)
    assert sum(node.op_type == "LessOrEqual" for node in model.graph.node) == branches
