"""Mutants drawn at random stop a whole migration at exactly their operator."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from scripts.mutants.scoring import Score
from tapml.plan.graph_plan import GraphPlan
from tapml_targets.target import Target
from tests.offload.commands import run_here
from tests.offload.plants import Plant, plant
from tests.offload.sessions import FinishedSession, states


@pytest.mark.parametrize("number", [0, 1])
def test_a_migration_stops_at_exactly_the_operator_that_was_made_wrong(
    number: int,
    scores: tuple[Score, ...],
    finished: FinishedSession,
    tiny_plan: GraphPlan,
    tiny_target: Target,
    tmp_path: Path,
) -> None:
    found = [score.mutant for score in scores if score.found_by in ("numbers", "memory checks")]
    mutant = random.Random(20261120).sample(found, 2)[number]
    cache = finished.copy_cache(tmp_path / "cache")
    wrong = Plant(mutant.operator, "", mutant.site.apply, "")
    plant(wrong, tiny_plan.operators[mutant.operator], tiny_target, cache)
    session = tmp_path / "session"
    ended = run_here(*finished.arguments(session), cache=cache)
    assert ended.exit_code == 1
    assert f"failed: {mutant.operator}: " in ended.output
    outcome = states(session)
    names = list(outcome)
    at = names.index(mutant.operator)
    assert outcome == {
        **dict.fromkeys(names[:at], "moved"),
        names[at]: "failed",
        **dict.fromkeys(names[at + 1 :], "waiting"),
    }
