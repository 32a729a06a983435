"""Unique inconsistencies, and the causes behind them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tapml.backends.runner import Node
from tapml.cli.main import main
from tapml.comparing.causes import causes, unique_inconsistencies
from tapml.comparing.localization import NodeDeviation
from tapml.comparing.processes import Failure
from tapml.comparing.result import BackendResult, Comparison, PairResult
from tapml.durable.strict_json import to_strict

METRICS = {
    "elementwise": {"triggering": 3},
    "D_CLASS": {"pattern": {"16": 1, "15-8": 2, "7-4": 0, "3-2": 0, "1": 0, "0": 5}},
    "share": 0.375,
    "triggering": "0-2",
}


def differing(first: str, second: str, blamed: str = "torch", deviation: float = 0.3) -> PairResult:
    """A pair that parts at a pooling layer."""
    node = NodeDeviation(Node("pool1", "AveragePooling2D"), deviation, 1.0, 1e5, True, True, True)
    return PairResult((first, second), "inconsistent", "", layer="pool1",
                      layer_kind="AveragePooling2D", blamed=blamed, metrics=METRICS,
                      graph=(node,))  # fmt: skip


def document(model: str, *pairs: PairResult, failures: dict[str, Failure] = {}) -> dict[str, Any]:  # noqa: B006
    """A comparison as plain data."""
    backends = tuple(BackendResult(name, "", {}, 0.0, each) for name, each in failures.items())
    return Comparison(model, 8, "none", backends, pairs).to_json()


def test_one_pattern_of_one_model_is_one_inconsistency() -> None:
    two = document("a", differing("torch", "jax"), differing("torch", "numpy"))
    assert len(unique_inconsistencies([two])) == 1
    assert len(unique_inconsistencies([two, {**two, "model": "b"}])) == 2
    assert not unique_inconsistencies([document("c", PairResult(("a", "b"), "agree", ""))])


def test_what_starts_in_one_kind_of_layer_of_one_backend_is_one_cause() -> None:
    found = causes([
        document("a", differing("torch", "jax"), differing("torch", "numpy", deviation=0.02)),
        document("b", differing("torch", "jax"), differing("jax", "numpy", blamed="jax")),
    ])  # fmt: skip
    assert [(each.layer_kind, each.backend, len(each.found)) for each in found] == [
        ("AveragePooling2D", "torch", 3), ("AveragePooling2D", "jax", 1),
    ]  # fmt: skip
    plain = found[0].to_json()
    assert plain["models"] == ["a", "b"] and plain["layers"] == ["pool1"]
    assert plain["relative_deviation"] == ["1e-2", "1e-1"]
    clusters = [(each["relative_deviation"], each["pairs"]) for each in plain["clusters"]]
    assert clusters == [("1e-1", 2), ("1e-2", 1)]
    assert str(found[0]) == "inconsistent in AveragePooling2D, torch: 2 pairs"


def test_pairs_that_part_at_one_layer_by_as_much_on_the_same_instances_are_a_cluster() -> None:
    found = document(
        "a", differing("torch", "jax"), differing("torch", "numpy"),
        differing("torch", "openvino", deviation=0.002), PairResult(("jax", "numpy"), "agree", ""),
    )["clusters"]  # fmt: skip
    assert [(each["layer"], each["relative_deviation"], len(each["pairs"])) for each in found] == [
        ("pool1", "1e-1", 2), ("pool1", "1e-3", 1),
    ]  # fmt: skip
    assert found[0]["instances"] == "0-2" and found[0]["blamed"] == "torch"


@pytest.mark.parametrize(("second", "number"), [("keras/layers.py:7", 1), ("torch/nn.py:1", 2)])
def test_equal_failures_are_one_cause(second: str, number: int) -> None:
    failures = {
        "a": Failure("error", "wrong shape", "keras/layers.py:7"),
        "b": Failure("error", "wrong shape", second),
    }
    pairs = [
        PairResult((name, "healthy"), "error", "", layer="d", layer_kind="Dense", blamed=name)
        for name in failures
    ]
    assert len(causes([document("m", *pairs, failures=failures)])) == number


def test_the_command_counts_what_results_have_in_common(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        plain = document(name, differing("torch", "jax"), differing("torch", "numpy"))
        (tmp_path / name / "layers" / "pool1").mkdir(parents=True)
        (tmp_path / name / "result.json").write_text(json.dumps(to_strict(plain)))
        # A layer's model has files of its own.
        (tmp_path / name / "layers" / "pool1" / "config.json").write_text("{}")
    assert main(["compare", "--causes", str(tmp_path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["comparisons"], found["unique"], found["inconsistencies"]) == (2, 2, 4)
    assert [each["models"] for each in found["causes"]] == [["a", "b"]]
    assert main(["compare", "--causes", str(tmp_path)]) == 1
    assert "2 comparisons, 2 unique (4) inconsistencies, 1 cause" in capsys.readouterr().out
