"""The study of planted faults: what it finds, and that it goes on where it was interrupted."""

from __future__ import annotations

from pathlib import Path

from scripts.compare_causes import study
from scripts.cradle_causes.further import FURTHER
from scripts.cradle_causes.table import misses, table
from tapml.backends.child import JOBS
from tapml.comparing.data import make_data
from tapml.isolate.pool import Pool
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
