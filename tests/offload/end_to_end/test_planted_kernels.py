"""A wrong kernel stops the migration at exactly its operator, with everything needed to see why."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tapml.plan.graph_plan import GraphPlan
from tapml_targets.target import Target
from tests.offload.commands import Ended, run_here, run_process
from tests.offload.plants import PLANTS, Plant, plant
from tests.offload.sessions import FinishedSession, read_report


@dataclass(frozen=True)
class Stopped:
    """A session that met a wrong kernel."""

    wrong: Plant
    session: Path
    cache: Path
    ended: Ended
    report: dict[str, Any]

    @property
    def operator(self) -> dict[str, Any]:
        found: dict[str, Any] = next(
            each for each in self.report["operators"] if each["name"] == self.wrong.operator
        )
        return found


def stop_at(
    name: str, finished: FinishedSession, plan: GraphPlan, target: Target, root: Path
) -> Stopped:
    """Run a session whose compiler gives a wrong kernel."""
    wrong = PLANTS[name]
    cache = finished.copy_cache(root / "cache")
    plant(wrong, plan.operators[wrong.operator], target, cache)
    session = root / "session"
    ended = run_here(*finished.arguments(session), cache=cache)
    return Stopped(wrong, session, cache, ended, read_report(session))


@pytest.fixture(scope="module", params=["reduction start", "missing guard"])
def stopped(
    request: pytest.FixtureRequest,
    finished: FinishedSession,
    tiny_plan: GraphPlan,
    tiny_target: Target,
    tmp_path_factory: pytest.TempPathFactory,
) -> Stopped:
    root = tmp_path_factory.mktemp("planted")
    return stop_at(request.param, finished, tiny_plan, tiny_target, root)


def test_the_migration_stops_at_exactly_that_operator(stopped: Stopped) -> None:
    assert stopped.ended.exit_code == 1
    states = {each["name"]: each["state"] for each in stopped.report["operators"]}
    names = list(states)
    at = names.index(stopped.wrong.operator)
    assert states == {
        **dict.fromkeys(names[:at], "moved"),
        names[at]: "failed",
        **dict.fromkeys(names[at + 1 :], "waiting"),
    }
    assert stopped.report["outcome"]["status"] == "fail"


def test_the_last_lines_name_the_operator_where_it_comes_from_and_its_numbers(
    stopped: Stopped,
) -> None:
    output = stopped.ended.output
    assert f"failed: {stopped.wrong.operator}: " in output
    assert stopped.wrong.layer_path in output
    assert "modeling_llama.py:" in output or "activations.py:" in output
    assert stopped.wrong.says in output
    assert stopped.operator["replay"]["status"] == "fail"
    assert stopped.operator["replay"]["worst"]["outputs"], "the numbers of the worst output"


def test_its_repro_folder_replays_to_the_same_verdict_elsewhere(stopped: Stopped) -> None:
    folder = Path(stopped.operator["repro"])
    assert f"repro: {folder}" in stopped.ended.output
    ended = run_process("replay", folder, "--json", cache=stopped.cache)
    assert ended.exit_code == 1, ended.errors
    again, first = json.loads(ended.output)["verdict"], stopped.operator["replay"]["worst"]
    assert (again["status"], again["reason"]) == (first["status"], first["reason"])


def test_a_replay_goes_to_the_device_it_failed_on_and_says_which(stopped: Stopped) -> None:
    ended = run_here("replay", stopped.operator["repro"], cache=stopped.cache)
    worst = stopped.operator["replay"]
    device = stopped.report["target"]["name"]
    assert ended.exit_code == 1
    assert ended.output == f"fail: {worst['worst_test']} on {device}: {worst['worst']['reason']}\n"


def test_right_kernels_in_its_place_let_the_same_session_finish(
    finished: FinishedSession, stopped: Stopped
) -> None:
    ended = run_here("offload", "--session", stopped.session, cache=finished.cache)
    assert ended.exit_code == 0, ended.errors
    reused = {
        each["name"]: bool(each["replay"].get("reused"))
        for each in read_report(stopped.session)["operators"]
    }
    names = list(reused)
    at = names.index(stopped.wrong.operator)
    assert all(reused[name] for name in names[:at])
    assert not any(reused[name] for name in names[at:])
