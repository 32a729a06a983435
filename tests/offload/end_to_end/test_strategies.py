"""Model-wise runs cost what their strategy promises, and find what only the whole model shows.

The wrong kernels here pass all carved tests (:mod:`tests.offload.hidden_faults`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path
from typing import Any

import pytest

from tapml.plan.graph_plan import GraphPlan
from tapml_targets.library import Library
from tapml_targets.target import Target
from tests.offload.commands import Ended, run_here
from tests.offload.hidden_faults import (
    marks_its_outputs,
    right_where_tests_look,
    stumbles_over_marks,
)
from tests.offload.plants import Plant, plant
from tests.offload.sessions import FinishedSession, read_report, states

# Holds every operator's first test, and few of the later steps'.
BUDGET = "200K"
ALONE = "matmul_transposed_8"
TOGETHER = ("fused_silu_multiply_2", "fused_matmul_transposed_add_3")


@dataclass(frozen=True)
class Bisected:
    """A session that bisected a clean model."""

    folder: Path
    cache: Path
    ended: Ended
    report: dict[str, Any]

    def copy(self, to: Path) -> Path:
        """A session of one's own."""
        return FinishedSession(self.folder, to, self.cache, "", self.ended).copy(to)


@pytest.fixture(scope="module")
def bisected(finished: FinishedSession, tmp_path_factory: pytest.TempPathFactory) -> Bisected:
    folder = tmp_path_factory.mktemp("bisected") / "session"
    arguments = list(finished.arguments(folder))
    arguments[arguments.index("--new-tokens") + 1] = "5"
    ended = run_here(*arguments, "--budget", BUDGET, "--strategy", "bisect", cache=finished.cache)
    assert ended.exit_code == 0, ended.errors
    return Bisected(folder, finished.cache, ended, read_report(folder))


@pytest.fixture
def cache_with(
    bisected: Bisected,
    finished: FinishedSession,
    tiny_plan: GraphPlan,
    tiny_target: Target,
    tmp_path: Path,
) -> Callable[..., Path]:
    """A cache in which operators have Libraries that are wrong where no carved test looks."""

    def make(**changes: Callable[[Library], Library]) -> Path:
        cache = finished.copy_cache(tmp_path / "cache")
        for name, change in changes.items():
            plant(Plant(name, "", change, ""), tiny_plan.operators[name], tiny_target, cache)
        return cache

    return make


def resume(session: Path, cache: Path, *options: str) -> tuple[Ended, dict[str, Any]]:
    ended = run_here("offload", "--session", session, *options, cache=cache)
    return ended, read_report(session)


def failed(report: dict[str, Any]) -> dict[str, str]:
    """Operators that failed and why."""
    return {o["name"]: o["reason"] for o in report["operators"] if o["state"] == "failed"}


def test_a_clean_model_takes_one_model_wise_run(bisected: Bisected) -> None:
    strategy = bisected.report["strategy"]
    assert (strategy["name"], strategy["order"]) == ("bisect", "graph")
    assert (strategy["model_runs"], strategy["promised"]) == (1, 1)
    assert set(states(bisected.folder).values()) == {"moved"}
    assert all(o["model_check"]["status"] == "pass" for o in bisected.report["operators"])
    assert bisected.report["verdicts"]["first"] == len(bisected.report["operators"])


def test_a_whole_run_moves_no_more_bytes_than_it_has_to(bisected: Bisected) -> None:
    moved = bisected.report["moved_bytes"]
    assert set(moved) == {"prefill", "decode", "weights"}
    for name, each in moved.items():
        assert each["moved"] == each["minimum"] > 0, name


def test_one_operator_that_only_the_model_shows_is_found_in_halves(
    bisected: Bisected, cache_with: Callable[..., Path], tmp_path: Path
) -> None:
    session = bisected.copy(tmp_path / "session")
    wrong = right_where_tests_look(session / "suite", ALONE)
    cache = cache_with(**{ALONE: wrong})
    ended, report = resume(session, cache, "--strategy", "bisect")
    assert ended.exit_code == 1
    reasons = failed(report)
    assert set(reasons) == {ALONE}
    assert reasons[ALONE].startswith("the complete model differs from the reference with it alone")
    assert set(states(session).values()) == {"failed", "moved"}, "the others pass without it"
    operators = report["operators"]
    # The whole, the search, the culprit alone, all others.
    strategy = report["strategy"]
    assert strategy["model_runs"] <= ceil(log2(len(operators))) + 3
    assert strategy["model_runs"] <= strategy["promised"]
    assert strategy["culprits"] == [[ALONE]]
    assert report["verdicts"] == {
        "kept": len(operators) - 1,
        "again": 1,
        "first": 0,
        "why": {"the kernel": 1},
    }
    assert next(o for o in operators if o["name"] == ALONE)["again"] == ["the kernel"]
    assert "note: resumed: " in ended.errors
    assert "1 made again (the kernel)" in ended.errors

    again, standing = resume(session, cache, "--strategy", "bisect")
    assert again.exit_code == 1
    assert standing["strategy"]["model_runs"] == 0, "nothing changed: every verdict stands"
    assert failed(standing) == reasons
    assert standing["outcome"] == report["outcome"]

    shutil.rmtree(session / "repro" / ALONE)
    _, tried = resume(session, cache, "--strategy", "bisect")
    assert tried["strategy"]["model_runs"] > 0, "taken back by whoever removed the folder"
    assert failed(tried) == reasons
    _, standing = resume(session, cache, "--strategy", "bisect")
    assert standing["strategy"]["model_runs"] == 0, "it failed again, and stands again"

    one, report = resume(session, cache)
    assert one.exit_code == 1
    assert set(failed(report)) == {ALONE}, "one by one comes to the same operator"
    assert report["strategy"]["model_runs"] <= report["strategy"]["promised"] == len(operators)


def test_operators_that_are_wrong_only_together_are_found_beside_one_that_is_wrong_alone(
    bisected: Bisected, cache_with: Callable[..., Path], tmp_path: Path
) -> None:
    session = bisected.copy(tmp_path / "session")
    marking, stumbling = TOGETHER
    cache = cache_with(
        **{
            ALONE: right_where_tests_look(session / "suite", ALONE),
            marking: marks_its_outputs,
            stumbling: stumbles_over_marks,
        }
    )
    ended, report = resume(session, cache, "--strategy", "bisect", "--keep-going")
    assert ended.exit_code == 1
    reasons = failed(report)
    assert set(reasons) == {ALONE, *TOGETHER}
    assert f"with it together with {stumbling} on the target" in reasons[marking]
    assert f"with it together with {marking} on the target" in reasons[stumbling]
    culprits = report["strategy"]["culprits"]
    assert sorted(map(sorted, culprits)) == sorted(map(sorted, ([ALONE], TOGETHER)))
    assert set(states(session).values()) == {"failed", "moved"}
    strategy = report["strategy"]
    assert strategy["model_runs"] <= strategy["promised"]
    assert all((session / "repro" / name / "README.txt").is_file() for name in reasons)
