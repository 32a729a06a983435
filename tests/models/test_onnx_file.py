"""ONNX files: sizes from the graph, weights of the folder alone, errors that name the node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tapml.importing.importer import import_model
from tapml.models.huggingface import load_any
from tapml.models.onnx_file import OnnxModel
from tapml.rooting.own_forward import root_wrapper
from tapml.rooting.rooting import root
from tapml_targets.errors import InputError, TapmlError, UnsupportedOperatorError
from tests.models.onnx_files import make_onnx


def of_the_first_exporters(path: Path) -> Path:
    """A file that names its weights among its inputs, and has one that nothing reads."""
    model = onnx.load(make_onnx(path, outside="net.data"), load_external_data=False)
    unread = onnx.numpy_helper.from_array(np.array(7), "first.num_batches_tracked")
    model.graph.initializer.append(unread)
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(each.name, each.data_type, each.dims)
        for each in model.graph.initializer
    )
    path.write_bytes(model.SerializeToString())
    return path


def test_a_file_is_rooted_and_its_weights_stay_weights(tmp_path: Path) -> None:
    model = load_any(of_the_first_exporters(tmp_path / "net.onnx"))
    assert isinstance(model, OnnxModel)
    # The computed shape is folded, so that no operator is left of it.
    assert "Shape" not in {node.op_type for node in model.folded.graph.node}
    imported = import_model(model)
    assert set(imported.plan.weights) == {"w1", "b1", "w2", "b2"}
    assert root_wrapper(model) < 1e-6
    report = root(model, imported)
    assert not report.not_comparable
    assert report.worst is not None
    assert report.worst.ratio < 0.1
    origins = {o.source for c in imported.plan.entries["forward"].calls for o in c.origins}
    assert {"node /first/Conv", "node /head/Gemm"} <= origins


def test_the_first_input_gives_the_free_sizes(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 2, 8, 8), dtype=np.float32))
    model = load_any(make_onnx(tmp_path / "net.onnx"), inputs=[tmp_path / "x.npy"])
    assert model.stored.facts()["input"] == "x float32 [3, 2, 8, 8]"


def damaged(path: Path) -> Path:
    make_onnx(path).write_bytes(path.read_bytes()[:900])
    return path


def leaving(path: Path) -> Path:
    secret = path.parent.parent / "secret"
    secret.write_bytes(bytes(1 << 16))
    model = onnx.load(make_onnx(path, outside="net.data"), load_external_data=False)
    for tensor in model.graph.initializer:
        if tensor.external_data:
            tensor.external_data[0].value = "../secret"
    path.write_bytes(model.SerializeToString())
    return path


def linked(path: Path) -> Path:
    make_onnx(path, outside="net.data")
    (path.parent / "net.data").rename(path.parent.parent / "elsewhere")
    (path.parent / "net.data").symlink_to(path.parent.parent / "elsewhere")
    return path


def cut(path: Path) -> Path:
    make_onnx(path, outside="net.data")
    (path.parent / "net.data").write_bytes(bytes(40))
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (damaged, "no valid ONNX model"),
        (leaving, "lies in '../secret': expected a file in"),
        (linked, "lies in 'net.data': expected a file in"),
        (cut, r"is at \d+ to \d+ of net.data, which has 40 bytes"),
        (lambda path: make_onnx(path, activation="Rely"), "no valid ONNX model: .*Rely"),
        (
            lambda path: make_onnx(path, activation="Gelu", domain="com.acme"),
            "com.acme.Gelu in node '/first/act'",
        ),
    ],
)
def test_a_file_that_is_no_model_is_refused_in_one_line(
    tmp_path: Path, make: object, message: str
) -> None:
    (tmp_path / "model").mkdir()
    path = make(tmp_path / "model" / "net.onnx")  # type: ignore[operator]
    with pytest.raises(TapmlError, match=message) as caught:
        load_any(path)
    assert "\n" not in str(caught.value)


def test_a_missing_converter_names_its_node(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    model = onnx.load(make_onnx(path))
    node = onnx.helper.make_node(
        "DeformConv", ["data", "kernel", "moved"], ["d"], name="/odd/DeformConv"
    )
    for name, shape in (("data", [1, 1, 3, 3]), ("kernel", [1, 1, 3, 3]), ("moved", [1, 18, 1, 1])):
        model.graph.input.append(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        )
    model.graph.output.append(onnx.helper.make_tensor_value_info("d", 1, [1, 1, 1, 1]))
    model.graph.node.append(node)
    next(e for e in model.opset_import if not e.domain).version = 19
    onnx.save(model, path)
    with pytest.raises(UnsupportedOperatorError, match=r"DeformConv in /odd/DeformConv"):
        import_model(load_any(path))


def test_a_free_size_asks_for_an_input(tmp_path: Path) -> None:
    model = onnx.load(make_onnx(tmp_path / "net.onnx"))
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(InputError, match=r"free size 'height'.*--input"):
        load_any(tmp_path / "net.onnx")


def test_inputs_that_decide_extents_or_a_branch_are_constants_of_the_model(tmp_path: Path) -> None:
    make, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    number, whole = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    branches = {
        f"{name}_branch": onnx.helper.make_graph(
            [make("MatMul", ["x", weight], [f"{name}_y"])],
            name,
            [],
            [value(f"{name}_y", number, None)],
        )
        for name, weight in (("then", "w4"), ("else", "w8"))
    }
    nodes = [
        make("Equal", ["rate", "16k"], ["wide"]),
        make("If", ["wide"], ["y"], **branches),
        make("Reshape", ["y", "shape"], ["z"]),
    ]
    weights = {
        "w4": np.ones((4, 6), np.float32),
        "w8": np.ones((8, 6), np.float32),
        "16k": np.array(16),
    }
    graph = onnx.helper.make_graph(
        nodes,
        "net",
        [value("x", number, ["n", "m"]), value("rate", whole, []), value("shape", whole, [2])],
        [value("z", number, None)],
        [onnx.numpy_helper.from_array(each, name) for name, each in weights.items()],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "net.onnx"
    )
    given = {"x": np.ones((2, 4), np.float32), "rate": np.array(16), "shape": np.array([3, 4])}
    np.savez(tmp_path / "inputs.npz", **given)  # type: ignore[arg-type]
    model = load_any(tmp_path / "net.onnx", inputs=[tmp_path / "inputs.npz"])
    assert isinstance(model, OnnxModel)
    assert model.stored.facts()["input"] == "x float32 [2, 4]"
    assert any("rate is 16 from now on" in each for each in model.notes)
    assert root_wrapper(model) < 1e-6
    root(model, import_model(model))
    with pytest.raises(InputError, match=r"input shape of net decides extents.*--input"):
        load_any(tmp_path / "net.onnx")
    # A later input has no other value of it, and the first one fits the file.
    assert [each.name for each in model.signature.fixed] == ["rate", "shape"]
    np.savez(tmp_path / "other.npz", **given | {"rate": np.array(8)})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"input rate of net is 8 \[\]: expected 16 \[\]"):
        load_any(tmp_path / "net.onnx", inputs=[tmp_path / "inputs.npz", tmp_path / "other.npz"])
    np.savez(tmp_path / "other.npz", **given | {"shape": np.array([8])})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"input shape of net has the shape \[1\]: expected \[2"):
        load_any(tmp_path / "net.onnx", inputs=[tmp_path / "other.npz"])
