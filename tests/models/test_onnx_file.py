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


def test_a_file_is_rooted_and_its_weights_stay_weights(tmp_path: Path) -> None:
    model = load_any(make_onnx(tmp_path / "net.onnx", outside="net.data"))
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
