"""``tapml validate``: a verdict for every operator, and nothing kept."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from tapml.graph.plan import GraphPlan
from tapml_targets.target import Target
from tests.offload.commands import run_here
from tests.offload.plants import PLANTS, plant
from tests.offload.sessions import FinishedSession

pytestmark = pytest.mark.slow

TOKENS = ("--tokens", "1 2 3 4", "--new-tokens", "2")


def test_every_operator_is_tried_past_a_wrong_one(
    finished: FinishedSession,
    tiny_plan: GraphPlan,
    tiny_target: Target,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = PLANTS["reduction start"]
    cache = finished.copy_cache(tmp_path / "cache")
    plant(wrong, tiny_plan.operators[wrong.operator], tiny_target, cache)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    ended = run_here(
        "validate", "--model", finished.model, "--device", finished.device, *TOKENS, "--quiet",
        cache=cache,
    )  # fmt: skip
    assert ended.exit_code == 1
    lines = ended.output.splitlines()
    assert sum(line.startswith("moved ") for line in lines) == len(tiny_plan.operators) - 1
    (failed,) = (line for line in lines if line.startswith("failed "))
    assert wrong.operator in failed
    assert wrong.says in failed
    assert lines[-1].startswith("fail: 1 of ")
    assert list(temporary.iterdir()) == []


def test_it_is_json_too(finished: FinishedSession) -> None:
    ended = run_here(
        "validate", "--model", finished.model, "--device", finished.device, *TOKENS, "--quiet",
        "--json", cache=finished.cache,
    )  # fmt: skip
    assert ended.exit_code == 0, ended.errors
    assert json.loads(ended.output)["outcome"]["status"] == "pass"
