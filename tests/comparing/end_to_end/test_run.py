"""Whole comparisons of an ONNX model, with a fault planted in one backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tapml
from tapml.comparing.page import render_comparison
from tapml_targets.errors import InputError
from tests.comparing.small_cnn import (
    NODES,
    make_images,
    write_determinant,
    write_mixing,
    write_noise,
)

HEALTHY = ["onnxruntime", "onnx-reference"]


def test_backends_that_are_right_agree(cnn: Path) -> None:
    data = make_images() | {"weights": np.ones(32)}
    data["image"] = data.pop("x")
    comparison = tapml.compare(cnn, [*HEALTHY, "onnxruntime:disabled", "openvino"], data)
    assert {each.status for each in comparison.pairs} == {"agree"}
    assert len(comparison.pairs) == 6
    assert comparison.exit_code == 0
    # What no input is named for is said.
    assert comparison.to_json()["unread"] == ["weights"]


@pytest.mark.usefixtures("planted")
def test_a_planted_fault_is_named_at_its_layer_and_its_backend(cnn: Path) -> None:
    comparison = tapml.compare(cnn, [*HEALTHY, "planted:epsilon"], make_images())
    found = {each.backends: each for each in comparison.pairs}
    assert found["onnxruntime", "onnx-reference"].status == "agree"
    for healthy in HEALTHY:
        pair = found[healthy, "planted:epsilon"]
        assert (pair.status, pair.layer, pair.layer_kind, pair.blamed) == (
            "inconsistent", "norm1", "BatchNormalization", "planted:epsilon",
        )  # fmt: skip
        assert pair.guilty == ("norm1",)
        assert [each.node.name for each in pair.graph] == NODES
    assert comparison.exit_code == 1
    assert [set(each.pairs) for each in comparison.clusters] == [
        {(healthy, "planted:epsilon") for healthy in HEALTHY}
    ]
    page = render_comparison(comparison)
    assert "a deviation starts here" in page and "norm1" in page
    assert "differs" in page and "not replayed" not in page
    plain = comparison.to_json()["pairs"][1]
    assert plain["layer"] == "norm1" and plain["blamed"] == "planted:epsilon"
    assert plain["metrics"]["D_CLASS"]["pattern"].keys() == {"16", "15-8", "7-4", "3-2", "1", "0"}


@pytest.mark.usefixtures("planted")
def test_the_layer_alone_shows_the_fault_again(cnn: Path, tmp_path: Path) -> None:
    names = ["onnxruntime", "planted:epsilon"]
    (pair,) = tapml.compare(cnn, names, make_images(), layers=tmp_path / "layers").pairs
    folder = Path(pair.script).parent
    assert folder.parent == tmp_path / "layers"
    compile((folder / "show.py").read_text("utf-8"), "show.py", "exec")
    (alone,) = tapml.compare(folder / "layer.onnx", names, folder / "data.npz").pairs
    assert (alone.status, alone.layer) == ("inconsistent", "norm1")
    assert [each.node.name for each in alone.graph] == ["norm1"]


@pytest.mark.usefixtures("planted")
def test_large_data_is_run_a_window_at_a_time(cnn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapml.backends.steps.WINDOW_BYTES", 4 * 256)
    comparison = tapml.compare(cnn, [*HEALTHY, "planted:epsilon"], make_images(11))
    found = [(each.status, each.layer, each.blamed) for each in comparison.pairs]
    assert found == [("agree", "", ""), *[("inconsistent", "norm1", "planted:epsilon")] * 2]
    assert comparison.pairs[1].metrics["instances"] == 11


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("kind", ["crash", "error"])
def test_a_backend_that_fails_is_a_result_with_its_layer(cnn: Path, kind: str) -> None:
    comparison = tapml.compare(cnn, ["onnxruntime", f"planted:{kind}"], make_images(4))
    (pair,) = comparison.pairs
    assert (pair.status, pair.layer, pair.blamed) == (kind, "relu1", f"planted:{kind}")
    assert comparison.exit_code == 1
    # Also of a crash: Python's stack says where.
    assert "planted_backend/runner.py:" in comparison.failures[0][0].place


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("kind", ["killed", "memory"])
def test_a_backend_that_runs_out_of_memory_is_a_result(cnn: Path, kind: str) -> None:
    (pair,) = tapml.compare(cnn, ["onnxruntime", f"planted:{kind}"], make_images(4)).pairs
    assert (pair.status, pair.blamed) == ("out of memory", f"planted:{kind}")


@pytest.mark.usefixtures("planted")
def test_what_a_backend_does_not_support_accuses_nobody(cnn: Path) -> None:
    comparison = tapml.compare(cnn, ["onnxruntime", "planted:unsupported"], make_images(4))
    (pair,) = comparison.pairs
    assert (pair.status, pair.blamed, comparison.exit_code) == ("unsupported", "", 0)
    assert "no Relu here" in pair.reason


def test_an_operator_that_a_library_does_not_convert_is_unsupported(tmp_path: Path) -> None:
    squares = {"x": np.random.default_rng(0).random((2, 3, 3), np.float32)}
    path = write_determinant(tmp_path)
    comparison = tapml.compare(path, [*HEALTHY, "openvino"], squares)
    statuses = {each.backends: each.status for each in comparison.pairs}
    assert statuses["onnxruntime", "onnx-reference"] == "agree"
    assert list(statuses.values()).count("unsupported") == 2
    failure = comparison.backends[2].failure
    assert failure is not None and failure.message == "OpenVINO does not convert Det-18"


@pytest.mark.usefixtures("planted")
def test_equal_failures_of_several_backends_count_once(cnn: Path) -> None:
    names = ["onnxruntime", "planted:error", "planted:error-again"]
    comparison = tapml.compare(cnn, names, make_images(4))
    assert {each.status for each in comparison.pairs} == {"error"}
    ((failure, layer, backends),) = comparison.failures
    assert (failure.kind, layer, backends) == ("error", "relu1", names[1:])


@pytest.mark.usefixtures("planted")
def test_a_backend_that_hangs_is_a_result(cnn: Path) -> None:
    comparison = tapml.compare(
        cnn, ["onnxruntime", "planted:hang"], make_images(4), deadline_seconds=4
    )
    assert [each.status for each in comparison.pairs] == ["hang"]
    failure = comparison.backends[1].failure
    assert failure is not None and failure.kind == "hang"


@pytest.mark.usefixtures("planted")
def test_nan_on_one_side_is_named_at_its_layer(cnn: Path) -> None:
    (pair,) = tapml.compare(cnn, ["onnxruntime", "planted:nan"], make_images()).pairs
    assert (pair.status, pair.layer, pair.blamed) == ("nan", "relu1", "")


@pytest.mark.usefixtures("planted")
def test_a_wrong_shape_is_a_result(cnn: Path) -> None:
    (pair,) = tapml.compare(cnn, ["onnxruntime", "planted:shape"], make_images(4)).pairs
    assert (pair.status, pair.layer) == ("shape", "relu1")


@pytest.mark.usefixtures("planted")
def test_a_layer_that_is_right_about_one_instance_and_wrong_about_several_is_named(
    cnn: Path,
) -> None:
    comparison = tapml.compare(cnn, [*HEALTHY, "planted:rows"], make_images(4))
    pair = comparison.pairs[1]
    assert (pair.status, pair.layer, pair.blamed) == ("inconsistent", "relu1", "planted:rows")


ROWS = {"x": np.arange(12, dtype=np.float32).reshape(4, 3)}


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("kind", ["steps", "single"])
def test_a_model_that_mixes_instances_is_judged_an_instance_at_a_time(
    tmp_path: Path, kind: str
) -> None:
    names = ["onnx-reference", f"planted:{kind}"]
    (pair,) = tapml.compare(write_mixing(tmp_path), names, ROWS).pairs
    assert pair.status == "agree" and "an instance at a time" in pair.reason


@pytest.mark.usefixtures("planted")
def test_a_backend_that_alone_is_wrong_about_several_instances_is_no_model_that_mixes(
    cnn: Path,
) -> None:
    (pair,) = tapml.compare(cnn, ["onnx-reference", "planted:together"], make_images(4)).pairs
    assert (pair.status, pair.layer, pair.blamed) == ("inconsistent", "", "planted:together")


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("mixes", [False, True])
def test_a_fault_of_fused_layers_is_told_by_the_run_layer_by_layer(
    cnn: Path, tmp_path: Path, mixes: bool
) -> None:
    # Where instances mix, their single runs do not fit one another: each finds other places.
    model, data = (write_mixing(tmp_path, places=True), ROWS) if mixes else (cnn, make_images(4))
    (pair,) = tapml.compare(model, ["onnx-reference", "planted:fused"], data).pairs
    assert (pair.status, pair.layer, pair.blamed) == ("inconsistent", "", "planted:fused")
    assert "planted:fused compiled differs from planted:fused layer by layer" in pair.reason
    assert pair.between == (("x", "largest") if mixes else ("norm1", "relu1"))


@pytest.mark.usefixtures("planted")
def test_a_layer_that_differs_from_run_to_run_is_not_accused(cnn: Path) -> None:
    comparison = tapml.compare(cnn, ["onnxruntime", "planted:noise"], make_images(4))
    (pair,) = comparison.pairs
    assert pair.status == "nondeterministic"
    assert pair.unstable[0] == "relu1"
    assert pair.reason == "relu1 (planted:noise): other values in every run"
    assert (pair.blamed, comparison.exit_code) == ("", 0)


@pytest.mark.usefixtures("planted")
def test_a_layer_whose_result_the_next_one_cannot_take_is_named(cnn: Path) -> None:
    (pair,) = tapml.compare(cnn, ["onnxruntime", "planted:narrow"], make_images(4)).pairs
    assert (pair.status, pair.layer, pair.blamed) == ("error", "relu1", "planted:narrow")


@pytest.mark.parametrize("seed", [{}, {"seed": 1.0}])
def test_random_numbers_accuse_nobody(tmp_path: Path, seed: dict[str, float]) -> None:
    images = {"x": make_images(4)["x"]}
    (pair,) = tapml.compare(write_noise(tmp_path, seed), HEALTHY, images).pairs
    assert (pair.status, pair.unstable[0], pair.blamed) == ("nondeterministic", "noise", "")


def test_without_labels_the_agreement_of_backends_stands_in(cnn: Path) -> None:
    comparison = tapml.compare(cnn, HEALTHY, {"x": make_images(4)["x"]})
    assert comparison.labels == "from backends"
    assert comparison.pairs[0].metrics["D_CLASS"]["largest"] == 0


def test_a_model_without_an_input_is_told(tmp_path: Path) -> None:
    node = helper.make_node("Constant", [], ["y"], value_floats=[1.0])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    path = tmp_path / "constant.onnx"
    onnx.save(helper.make_model(helper.make_graph([node], "constant", [], [y])), path)
    with pytest.raises(InputError, match="the model takes no input"):
        tapml.compare(path, HEALTHY, make_images(4))


def test_data_that_does_not_fit_says_what_was_expected_and_found(cnn: Path) -> None:
    images = make_images(4)["x"]
    with pytest.raises(InputError, match=r"expects the shape \(any, 1, 8, 8\), found \(4, 1, 8\)"):
        tapml.compare(cnn, HEALTHY, {"x": images[..., 0]})
    with pytest.raises(InputError, match="no array for the input 'image'"):
        tapml.compare(cnn, HEALTHY, {"picture": images})
    with pytest.raises(InputError, match="the labels go from 0 to 10; the model has 10 classes"):
        tapml.compare(cnn, HEALTHY, {"x": images, "y": np.array([0, 1, 2, 10])})


def test_backends_may_be_one_text_and_an_array_is_the_input(cnn: Path) -> None:
    comparison = tapml.compare(cnn, ",".join(HEALTHY), make_images(4)["x"])
    assert [each.status for each in comparison.pairs] == ["agree"]
    with pytest.raises(InputError, match="an array or arrays by name, found list"):
        # What a type checker refuses, a notebook runs.
        tapml.compare(cnn, HEALTHY, [1.0])  # type: ignore[arg-type]


def test_one_backend_or_a_foreign_format_is_refused(cnn: Path) -> None:
    with pytest.raises(InputError, match="at least two backends"):
        tapml.compare(cnn, ["onnxruntime"], make_images(4))
    with pytest.raises(InputError, match="is any device: name one, such as"):
        tapml.compare(cnn, ["onnxruntime", "tapml-device"], make_images(4))
    with pytest.raises(InputError, match=r"keras-jax does not read cnn.onnx; .* \.keras"):
        tapml.compare(cnn, ["onnxruntime", "keras-jax"], make_images(4))


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(InputError, match=r"broken\.onnx is no"):
        tapml.compare(path, HEALTHY, make_images(4))
