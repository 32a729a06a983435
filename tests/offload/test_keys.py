"""What an operator-wise verdict depends on is in its key, and whom it accuses in its data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tapml.carving.replay_results import ReplayResult, Timing, summarise
from tapml.compare.policy import Policy
from tapml.compare.verdict import Status, Suspect, Verdict
from tapml.graph.plan import Operator
from tapml.graph.torch_subgraph import TorchForm
from tapml.offload import keys
from tapml.offload.algorithm import replay_data
from tapml_targets.library import Parameter
from tests.compare.cases import MemoryCase

OPERATOR = Operator(
    name="softmax",
    hash="12",
    parameters=(Parameter("x", (4,), "float32", "input"), Parameter("y", (4,), "int32", "output")),
    symbols=(),
    function="",
    script="",
    output_kinds=("value",),
)


def key_of(operator: Operator = OPERATOR, **changed: Any) -> str:
    parts: dict[str, Any] = {
        "kernel": "k",
        "tests": "t",
        "policy": Policy(),
        "fingerprint": "f",
    } | changed
    return keys.operator_key(operator, **parts)


def test_a_key_changes_with_everything_a_verdict_depends_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [
        key_of(),
        key_of(kernel="other"),
        key_of(tests="other"),
        key_of(policy=Policy(seed=1)),
        key_of(fingerprint="other"),
        key_of(replace(OPERATOR, hash="13")),
        key_of(replace(OPERATOR, output_kinds=("index",))),
        key_of(replace(OPERATOR, torch_forms=(TorchForm((), None, "none"),))),
    ]
    for name in ("PROBING_VERSION", "ORACLE_VERSION"):
        with monkeypatch.context() as patch:
            patch.setattr(keys, name, 1_000_000)
            found.append(key_of())
    with monkeypatch.context() as patch:
        patch.setattr(keys, "versions_text", lambda *names: f"another {names[0]}")
        found.append(key_of())
    assert len(set(found)) == len(found)
    assert key_of() == found[0]


def result(status: Status, suspect: Suspect) -> ReplayResult:
    case = MemoryCase("a@p0.s0", "softmax", (), (), ())
    verdict = Verdict(status, 1.0, (), "why", suspect)
    return ReplayResult(case.id, "softmax", verdict, Timing(0, 0, None, 0, 0), case)


def test_data_says_who_is_suspect_in_the_targets_place_even_where_tests_pass() -> None:
    results = [result("pass", ""), result("pass", "reference"), result("degraded", "importer")]
    data = replay_data(summarise(OPERATOR, results, results[-1], ()))
    assert data["suspects"] == [
        "the reference is suspect, not the target (1 of 3 tests)",
        "the importer is suspect, not the target (1 of 3 tests)",
    ]
    results = [result("fail", "target"), result("pass", "")]
    assert replay_data(summarise(OPERATOR, results, results[0], ()))["suspects"] == []
