"""``tapml compare``: what it says about the backends, and bad input in a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tapml.backends.finding import backends
from tapml.cli.main import main
from tests.comparing.small_cnn import write_cnn


def test_the_list_names_every_backend_and_what_it_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--list", "--json"]) == 0
    rows = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert {"keras-torch", "keras-jax", "keras-tensorflow", "onnxruntime"} <= set(rows)
    assert rows["onnx-reference"]["formats"] == [".onnx"]
    assert main(["compare", "--list"]) == 0
    assert "onnx-reference" in capsys.readouterr().out


def test_a_backend_that_is_not_installed_is_a_line_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "absent_backend").mkdir()
    (tmp_path / "absent_backend" / "__init__.py").write_text(
        "from tapml.backends.description import Description\n"
        "PACKAGES = {'no_such_module': 'no-such-module>=2'}\n"
        "DESCRIPTION = Description('Absent', ('.onnx',), PACKAGES)\n",
        encoding="utf-8",
    )
    metadata = tmp_path / "absent_backend-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: absent-backend\nVersion: 1.0\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(
        "[tapml.backends]\nabsent = absent_backend\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    backends.cache_clear()
    try:
        code = _compare(tmp_path, "onnxruntime,absent")
    finally:
        backends.cache_clear()
    assert code == 2
    assert capsys.readouterr().err == (
        'tapml: absent cannot run here: pip install "no-such-module>=2"\n'
    )


def test_bad_arguments_are_usage_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare"]) == 2
    assert "expected a model and --data" in capsys.readouterr().err
    assert _compare(tmp_path, "caffe,onnxruntime") == 2
    assert "no backend is named 'caffe'" in capsys.readouterr().err
    assert _compare(tmp_path, "onnxruntime") == 2
    assert "at least two backends" in capsys.readouterr().err
    for names, expected in (("onnxruntime", "two backends"), ("onnxruntime,keras-jax", "not read")):
        words = ["--fuzz", str(tmp_path / "found"), "--backends", names]
        assert main(["compare", *words]) == 2
        assert expected in capsys.readouterr().err
    assert main(["compare", "model.onnx", "--data", "data.npz", "--seed", "3"]) == 2
    assert "--seed says how --fuzz FOLDER searches" in capsys.readouterr().err


IMAGES = np.ones((4, 1, 8, 8), np.float32)
BAD_DATA: dict[str, tuple[dict[str, Any], str]] = {
    "shape": ({"x": IMAGES[..., 0]}, "expects the shape (any, 1, 8, 8), found (4, 1, 8)"),
    "dtype": ({"x": IMAGES > 0}, "the input 'image' expects float32, found bool"),
    "instances": ({"x": IMAGES, "y": np.zeros(3, int)}, "differ in their number of instances"),
    "labels": ({"x": IMAGES, "y": np.full(4, 10)}, "the labels go from 10 to 10; the model has 10"),
    "names": ({"picture": IMAGES}, "no array for the input 'image'"),
    "text": ({"x": np.array(["a"] * 4)}, "expected numbers"),
    "empty": ({"x": IMAGES[:0]}, "holds no instance"),
}


@pytest.mark.parametrize("kind", BAD_DATA)
def test_bad_data_is_a_line_that_says_what_was_expected_and_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    arrays, expected = BAD_DATA[kind]
    model = write_cnn(tmp_path)
    np.savez(tmp_path / "data.npz", **arrays)
    assert _run(model, "onnxruntime,openvino", tmp_path / "data.npz") == 2
    _expect_a_line(capsys, expected)


BAD_FILES = {
    "no model": ("absent.onnx", "data.npz", "there is no"),
    "damaged": ("damaged.onnx", "data.npz", "damaged.onnx is no"),
    "foreign": ("model.onnx", "data.npz", "keras-jax does not read model.onnx"),
    "no data": ("model.onnx", "absent.npz", "there is no file"),
    "no archive": ("model.onnx", "damaged.npz", "is no .npz file of numbers"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    model, data, expected = BAD_FILES[kind]
    write_cnn(tmp_path).rename(tmp_path / "model.onnx")
    for name in ("damaged.onnx", "damaged.npz"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
    np.savez(tmp_path / "data.npz", x=IMAGES)
    names = "onnxruntime,keras-jax" if kind == "foreign" else "onnxruntime,openvino"
    assert _run(tmp_path / model, names, tmp_path / data) == 2
    _expect_a_line(capsys, expected)


def _expect_a_line(capsys: pytest.CaptureFixture[str], expected: str) -> None:
    said = capsys.readouterr().err
    assert said.startswith("tapml: ") and said.count("\n") == 1
    assert expected in said


def _compare(folder: Path, names: str) -> int:
    model, data = folder / "model.onnx", folder / "data.npz"
    model.write_bytes(b"")
    np.savez(data, x=np.zeros((1, 2)))
    return _run(model, names, data)


def _run(model: Path, names: str, data: Path) -> int:
    return main(["compare", str(model), "--backends", names, "--data", str(data), "--quiet"])
