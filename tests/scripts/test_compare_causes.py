"""The study of planted faults: what it finds, and that it goes on where it was interrupted."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from scripts import compare_causes
from scripts.compare_causes import study
from scripts.cradle_causes.further import FURTHER, INT8
from scripts.cradle_causes.table import misses, table
from scripts.model_set.int8_onnx import quantize
from tapml.backends.child import JOBS
from tapml.comparing.data import make_data
from tapml.isolate.pool import Pool
from tapml_targets.platforms import DEFAULT_PLATFORM
from tests.comparing.small_cnn import make_images, write_cnn


def test_planted_faults_are_found_though_the_study_was_interrupted(tmp_path: Path) -> None:
    model, data = write_cnn(tmp_path), make_data(make_images(4))
    faults = tuple(
        each for each in FURTHER if each.name in {"norm-large-epsilon", "fused-activation"}
    )
    with Pool(JOBS) as pool:
        assert study(model, data, pool, tmp_path / "parts", faults, until=0) is None
        kept = (tmp_path / "parts" / "healthy.json").read_bytes()
        found = study(model, data, pool, tmp_path / "parts", faults)
    assert found is not None and misses([found]) == []
    assert (tmp_path / "parts" / "healthy.json").read_bytes() == kept
    healthy, *planted = found["pairs"]
    assert (healthy["status"], healthy["truth"]) == ("agree", False)
    assert [(each["cause"], each["layer"]) for each in planted] == [
        *[("norm-large-epsilon", "norm1")] * 2, *[("fused-activation", None)] * 2,
    ]  # fmt: skip
    assert all(each["blamed"].startswith("on_onnx:") for each in planted)
    assert "| an epsilon of 0.1 | 1 | 2 | 2 |" in table([found], FURTHER)


def test_faults_of_8_bits_are_found_and_clean_backends_are_not_accused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of weights that a device's importer folds, so that no hidden state shows them."""
    backends = ("onnxruntime", DEFAULT_PLATFORM)
    monkeypatch.setattr(compare_causes, "HEALTHY_OF_INT8", backends)
    images = make_images(4)
    model = write_cnn(tmp_path).rename(tmp_path / "digits-int8.onnx")
    quantize(model, images["x"], "QDQ")
    fault = next(each for each in INT8 if each.name == "codes-scale")
    with Pool(JOBS) as pool:
        found = study(model, make_data(images), pool, tmp_path / "parts", (fault,))
    assert found is not None and misses([found]) == []
    clean, *planted = found["pairs"]
    assert (clean["status"], clean["backends"]) == ("agree", list(backends))
    made = {each.output[0]: each for each in onnx.load(model).graph.node}
    for name, pair in zip(backends, planted, strict=True):
        assert pair["backends"] == [name, "on_onnx:codes-scale"]
        assert (pair["status"], pair["blamed"]) == ("inconsistent", "on_onnx:codes-scale")
        node = made[pair["layer"]]
        assert node.op_type == "DequantizeLinear" and not set(node.input) & set(made)
