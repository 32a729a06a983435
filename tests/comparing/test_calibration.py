"""Thresholds by cross-validation over models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tapml.cli.main import main
from tapml.comparing.calibration import calibrate, read_thresholds
from tapml.comparing.result import Comparison, PairResult
from tapml.comparing.verdicts import Thresholds, Truth, judge
from tapml_targets.errors import InputError


def compared(model: str, noise: float, guilty: tuple[str, ...] = ()) -> dict[str, Any]:
    """A comparison of seeded confidences with what noise makes of them."""
    random = np.random.default_rng(len(model) + int(model[-1]))
    one = random.dirichlet(np.full(10, 0.2), 100)
    other = np.abs(one + noise * random.normal(size=one.shape))
    truth = Truth("classification", one.argmax(axis=1))
    found = judge({"y": one}, {"y": other}, truth, Thresholds())
    pair = PairResult(("a", "b"), found.status, "", metrics=found.metrics, guilty=guilty)
    return Comparison(model, 100, "classification", (), (pair,)).to_json()


def models(number: int) -> list[dict[str, Any]]:
    """Each with a clean pair and a faulty one."""
    return [
        compared(f"model {each}", noise, guilty)
        for each in range(number)
        for noise, guilty in [(1e-7, ()), (0.2, ("conv1",))]
    ]


def test_every_tier_is_chosen_and_cross_validated_over_five_folds_of_models() -> None:
    found = calibrate(models(10))
    assert found.share == 0.0
    for name in ("D_CLASS", "D_MAD", "elementwise"):
        tier = found.tiers[name]
        assert (tier["found"], tier["faulty"], tier["false"], tier["clean"]) == (10, 10, 0, 10)
        assert len(tier["folds"]) == 5
        assert sum(each["faulty"] for each in tier["folds"]) == 10
        assert sum(each["found"] for each in tier["folds"]) >= 9
    folds = [set(each["models"]) for each in found.tiers["D_CLASS"]["folds"]]
    assert set().union(*folds) == {f"model {each}" for each in range(10)}
    assert sum(map(len, folds)) == 10


def test_the_accuracy_baseline_misses_what_moves_labels_both_ways() -> None:
    documents = models(6)
    for document in documents:
        tier = document["pairs"][0]["metrics"]["D_CLASS"]
        # As many instances become right as become wrong.
        tier["accuracy"][1] = tier["accuracy"][0]
    assert calibrate(documents).tiers["accuracy"]["missed"] == 6


def test_a_fault_that_was_planted_is_one_whatever_was_found() -> None:
    documents = models(6)
    for document in documents:
        pair = document["pairs"][0]
        pair["truth"] = bool(pair["guilty"])
        pair["guilty"] = []
    assert calibrate(documents).tiers["D_CLASS"]["faulty"] == 6


def test_too_few_models_or_no_fault_is_refused() -> None:
    with pytest.raises(InputError, match=r"at least 5 models.*found 4 models"):
        calibrate(models(4))
    with pytest.raises(InputError, match="0 of them faulty"):
        calibrate([compared(f"model {each}", 1e-7) for each in range(6)])


def test_the_command_writes_thresholds_that_a_comparison_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, file = tmp_path / "results", tmp_path / "own.json"
    results.mkdir()
    for number, document in enumerate(models(6)):
        (results / f"{number}.json").write_text(json.dumps(document), "utf-8")
    words = ["compare", "--calibrate", str(results), "--write-thresholds", str(file)]
    assert main(words) == 0
    assert "D_CLASS" in capsys.readouterr().out
    kept = json.loads(file.read_text("utf-8"))
    limits = read_thresholds(file)
    assert limits.relative == kept["relative"] == 1e-3
    assert limits.class_distance == kept["class_distance"]
    assert main(["compare", "a.onnx", "--data", "a.npz", *words[3:]]) == 2
    assert "--write-thresholds keeps what --calibrate" in capsys.readouterr().err


def test_a_file_that_holds_no_thresholds_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    with pytest.raises(InputError, match="--calibrate makes one"):
        read_thresholds(file)
    file.write_text('{"class_distance": 8}', "utf-8")
    with pytest.raises(InputError, match="is no file of thresholds"):
        read_thresholds(file)
