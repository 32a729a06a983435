"""``tapml compare``: what it says about the backends, and bad input in a line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tapml.backends.finding import backends
from tapml.cli.main import main


def test_the_list_names_every_backend_and_what_it_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--list", "--json"]) == 0
    rows = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert {"keras-torch", "keras-jax", "keras-tensorflow", "onnxruntime"} <= set(rows)
    assert rows["onnxruntime"]["formats"] == [".onnx"]
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


def _compare(folder: Path, names: str) -> int:
    model, data = folder / "model.onnx", folder / "data.npz"
    model.write_bytes(b"")
    np.savez(data, x=np.zeros((1, 2)))
    return main(["compare", str(model), "--backends", names, "--data", str(data)])
