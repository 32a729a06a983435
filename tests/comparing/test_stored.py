"""Outputs that are kept, used again, and compared where nothing runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import tapml
from tapml.cli.main import main
from tapml.comparing.run import compare_stored
from tapml.comparing.stored import hash_model
from tapml_targets.errors import InputError
from tests.comparing.small_cnn import make_images


def _as_of(folder: Path, version: str) -> Path:
    """The same runs, as another version on another machine leaves them, with other values."""
    (run,) = (folder / "runs").glob("*.json")
    said = json.loads(run.read_text())
    said["machine"], said["versions"] = "elsewhere (riscv64)", {"onnx": version}
    said["installed"] = [said["backend"], f"onnx=={version}"]
    run.unlink()
    run.with_stem("0" * 64).write_text(json.dumps(said))
    return folder


def test_what_is_kept_is_not_run_again_and_is_compared_with_what_others_left(
    cnn: Path, tmp_path: Path
) -> None:
    images, here, there = make_images(4), tmp_path / "here", tmp_path / "there"
    first = tapml.compare(cnn, ["onnx-reference"], images, outputs=there)
    assert (first.pairs, first.exit_code) == ((), 0)
    _as_of(there, "0.9")
    moved = tmp_path / "called-otherwise.onnx"
    shutil.copy(cnn, moved)
    shutil.copytree(there, here)
    twice = [tapml.compare(moved, ["onnx-reference"], images, outputs=here) for _ in range(2)]
    for found in twice:
        (pair,) = found.pairs
        assert (pair.status, pair.backends) == (
            "agree", ("onnx-reference", "onnx-reference [onnx 0.9]"),
        )  # fmt: skip
        assert pair.metrics["D_CLASS"]["largest"] == 0  # Against the labels.
    # The second run started no process: what it says it took is what the first one took.
    assert twice[0].backends[0].seconds == twice[1].backends[0].seconds

    (alone,) = compare_stored(here)
    assert [each.name.partition(" ")[0] for each in alone.backends] == ["onnx-reference"] * 2
    assert "0.9" in " ".join(each.name for each in alone.backends)
    assert alone.pairs[0].metrics == twice[0].pairs[0].metrics
    assert main(["compare", "--outputs", str(here)]) == 0


def test_a_stored_run_that_differs_says_that_no_layer_is_sought(cnn: Path, tmp_path: Path) -> None:
    images = make_images(4)
    tapml.compare(cnn, ["onnx-reference"], images, outputs=tmp_path)
    folder = _as_of(tmp_path, "0.9")
    (run,) = (folder / "runs").glob("*.json")
    said = json.loads(run.read_text())
    # Its output is what another data set's labels are: of another shape.
    said["outputs"][0][1] = said["beside"]["y"]
    run.write_text(json.dumps(said))
    (pair,) = tapml.compare(cnn, ["onnx-reference"], images, outputs=folder).pairs
    assert (pair.status, pair.layer) == ("shape", "")
    assert "ran elsewhere, so no layer is sought" in pair.reason
    three = tapml.compare(cnn, ["onnx-reference", "onnxruntime"], images, outputs=folder).pairs
    assert [each.blamed for each in three if each.status == "shape"] == [pair.backends[1]] * 2


def test_a_damaged_or_empty_folder_is_refused(cnn: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no two runs of one model"):
        compare_stored(tmp_path)
    tapml.compare(cnn, ["onnx-reference"], make_images(2), outputs=tmp_path)
    for array in (tmp_path / "arrays").iterdir():
        array.write_bytes(array.read_bytes()[:-1])
    with pytest.raises(InputError, match="is damaged: remove it"):
        tapml.compare(cnn, ["onnx-reference"], make_images(2), outputs=tmp_path)
    (run,) = (tmp_path / "runs").glob("*.json")
    run.write_text("{}")
    with pytest.raises(InputError, match="is no stored run"):
        compare_stored(tmp_path)


def test_another_model_is_one_whose_weights_lie_in_another_file_too(
    cnn: Path, tmp_path: Path
) -> None:
    import onnx

    model = tmp_path / "model.onnx"
    onnx.save(onnx.load(cnn), model, save_as_external_data=True, location="w", size_threshold=0)
    before = hash_model(model)
    with (tmp_path / "w").open("r+b") as weights:
        weights.write(b"\x01")
    assert hash_model(model) != before
