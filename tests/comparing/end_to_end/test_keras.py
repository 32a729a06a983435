"""A trained Keras model on PyTorch, JAX and NumPy, with a bug that Keras has.

tests/comparing/exhaustive has TensorFlow beside them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tapml.cli.main import main

pytestmark = pytest.mark.run_first

BACKENDS = ("keras-torch", "keras-jax", "keras-numpy")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and its data."""
    folder = tmp_path_factory.mktemp("digits")
    model, data = folder / "digits.keras", folder / "digits.npz"
    subprocess.run(
        [sys.executable, Path(__file__).with_name("digits.py"), model, data],
        check=True,
        env={**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
    )
    return model, data


def test_the_pooling_bug_of_keras_on_pytorch_is_found_at_its_layer(
    digits: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    find_the_pooling_bug(digits, tmp_path, capsys, BACKENDS)


def find_the_pooling_bug(
    digits: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    backends: tuple[str, ...],
) -> None:
    """Compare the backends with the real command: keras-torch alone is blamed, at its layer."""
    model, data = digits
    words = [str(model), "--backends", ",".join(backends), "--data", str(data)]
    words += ["--output", str(tmp_path)]
    code = main(["compare", *words, "--json"])
    assert code == 1
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "result.json").read_text("utf-8"))
    verdicts = {tuple(each["backends"]): each for each in found["pairs"]}
    assert len(verdicts) == len(backends) * (len(backends) - 1) // 2
    for pair_of, pair in verdicts.items():
        if "keras-torch" in pair_of:
            assert (pair["status"], pair["layer"]) == ("inconsistent", "features/pool1")
            assert (pair["layer_kind"], pair["blamed"]) == ("AveragePooling2D", "keras-torch")
            assert pair["place"] == "interface" and Path(pair["script"]).is_file()
            # The published threshold of D_MAD misses it.
            assert pair["metrics"]["D_MAD"]["triggering"] == 0
            assert pair["metrics"]["elementwise"]["triggering"] > 100
        else:
            assert (pair["status"], pair["layer"], pair["blamed"]) == ("agree", None, None)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "features/pool1" in page
