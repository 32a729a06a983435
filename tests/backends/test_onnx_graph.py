"""Models made of parts of an ONNX model."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tapml.backends.onnx_graph import OnnxGraph
from tests.comparing.small_cnn import NODES, write_cnn


@pytest.mark.parametrize("shape", [["n", 8, 6, 6], [1, 3]])
def test_types_of_added_outputs_are_inferred_though_the_file_annotates_values(
    tmp_path: Path, shape: list[str | int]
) -> None:
    """Exporters and quantizers annotate them, and nobody reads whether the shapes are right."""
    path = write_cnn(tmp_path)
    model = onnx.load(path)
    model.graph.value_info.append(
        helper.make_tensor_value_info("conv1", TensorProto.FLOAT, shape)
    )  # fmt: skip
    onnx.save(model, path)
    graph = OnnxGraph(path)
    for part in (graph.with_all_outputs(), graph.until("conv1")):
        found = {each.name: each for each in onnx.shape_inference.infer_shapes(part).graph.output}
        assert set(NODES) >= found.keys() >= {"conv1"}
        assert all(each.type.tensor_type.elem_type for each in found.values())
        extents = [each.dim_value or None for each in found["conv1"].type.tensor_type.shape.dim]
        assert extents == [None, 8, 8, 8]


def test_the_type_of_an_operator_that_is_not_onnxs_stays(tmp_path: Path) -> None:
    """Nothing else says it."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xzy"]
    nodes = [helper.make_node("Own", ["x"], ["z"], domain="own"),
             helper.make_node("Neg", ["z"], ["y"])]  # fmt: skip
    graph = helper.make_graph(nodes, "own", values[:1], values[2:], value_info=values[1:2])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "own.onnx")
    part = OnnxGraph(tmp_path / "own.onnx").with_all_outputs()
    assert [each.type.tensor_type.elem_type for each in part.graph.output] == [1, 1]
