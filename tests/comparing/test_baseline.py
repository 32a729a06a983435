"""The gate: known differences pass, new ones do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tapml.cli.main import main
from tapml.comparing.baseline import new_findings, read_baseline, write_baseline
from tapml.comparing.result import Comparison, PairResult
from tapml_targets.errors import InputError
from tests.comparing.small_cnn import make_images

FOUND = PairResult(("a", "b"), "inconsistent", "", layer="pool1", metrics={"share": 0.25})


def comparison(*pairs: PairResult) -> Comparison:
    return Comparison("model.onnx", 8, "none", (), pairs)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_baseline(comparison(FOUND), tmp_path / "baseline.json")
    return tmp_path / "baseline.json"


def test_what_was_accepted_passes_also_in_the_other_order(file: Path) -> None:
    turned = replace(FOUND, backends=("b", "a"))
    gone = replace(FOUND, status="agree", layer="")
    for pair in (FOUND, turned, gone):
        assert new_findings(comparison(pair), read_baseline(file)) == []


def test_another_layer_more_instances_and_another_pair_are_new(file: Path) -> None:
    other = PairResult(("a", "c"), "crash", "")
    for pair, said in [
        (replace(FOUND, layer="conv1"), "at conv1; the baseline has inconsistent at pool1"),
        (replace(FOUND, metrics={"share": 0.5}), "on 50.00% of the instances"),
        (other, "a / c: crash; the baseline has no such pair"),
    ]:
        (line,) = new_findings(comparison(pair), read_baseline(file))
        assert said in line


def test_a_file_that_is_no_baseline_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"pairs": 1}', encoding="utf-8")
    with pytest.raises(InputError, match="is no baseline"):
        read_baseline(tmp_path / "other.json")
    with pytest.raises(InputError, match="--write-baseline"):
        read_baseline(tmp_path / "absent.json")


@pytest.mark.usefixtures("planted")
def test_the_command_accepts_a_fault_and_fails_for_another(
    cnn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "data.npz", x=make_images(4)["x"])
    accepted = tmp_path / "accepted.json"
    command = ["compare", str(cnn), "--backends", "onnxruntime,planted:epsilon", "--quiet",
               "--data", str(tmp_path / "data.npz")]  # fmt: skip
    assert main([*command, "--write-baseline", str(accepted)]) == 0
    assert main([*command, "--baseline", str(accepted)]) == 0
    accepted.write_text(accepted.read_text("utf-8").replace("norm1", "conv1"), encoding="utf-8")
    capsys.readouterr()
    assert main([*command, "--baseline", str(accepted)]) == 1
    assert capsys.readouterr().err == (
        "new: onnxruntime / planted:epsilon: inconsistent at norm1; "
        "the baseline has inconsistent at conv1\n"
    )


def test_the_fixture_accepts_a_fault_once_and_fails_for_a_new_one(
    cnn: Path, planted: None, tmp_path: Path, pytester: pytest.Pytester
) -> None:
    np.savez(tmp_path / "data.npz", x=make_images(4)["x"])
    pytester.makepyfile(
        f"""
        def test_model(tapml_compare):
            names = ["onnxruntime", "planted:epsilon"]
            found = tapml_compare({str(cnn)!r}, names, {str(tmp_path / "data.npz")!r},
                                  baseline="accepted.json")
            assert found.pairs[0].layer == "norm1"
        """
    )
    ended = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    ended.stdout.fnmatch_lines(["there is no *accepted.json; `pytest --tapml-accept` writes *"])
    ended = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--tapml-accept")
    ended.assert_outcomes(passed=1)
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
    file = pytester.path / "accepted.json"
    file.write_text(file.read_text("utf-8").replace("norm1", "conv1"), encoding="utf-8")
    ended = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--junitxml=found.xml")
    ended.assert_outcomes(failed=1)
    ended.stdout.fnmatch_lines(
        [
            "onnxruntime / planted:epsilon: inconsistent at norm1; *inconsistent at conv1",
            "`pytest --tapml-accept` writes *accepted.json *",
        ]
    )
    assert "inconsistent norm1" in (pytester.path / "found.xml").read_text("utf-8")
