"""Wrong kernels made by rule and not by choice are found, each at its own operator."""

from __future__ import annotations

import json

import pytest

from scripts.mutants.kinds import KINDS
from scripts.mutants.report import lines, summary, table
from scripts.mutants.scoring import Score
from tests.mutants.conftest import COUNT

pytestmark = pytest.mark.slow


def test_two_of_every_kind_were_made_and_run(scores: tuple[Score, ...]) -> None:
    rows = {row["kind"]: row for row in table(scores)}
    assert set(rows) == {*KINDS, "all"}
    assert all(rows[kind]["made"] == 2 for kind in KINDS)
    assert rows["all"]["made"] == COUNT
    assert rows["all"]["built"] >= COUNT - 2
    assert rows["all"]["observable"] >= 20


def test_every_one_that_changes_a_bit_is_found_unless_it_computes_as_well(
    scores: tuple[Score, ...],
) -> None:
    missed = [score for score in scores if score.outcome == "missed"]
    # An exponential that would overflow does not where the carved numbers are small, and any number
    # near the largest will do for what a softmax subtracts.
    others = [
        score
        for score in missed
        if score.mutant.site.kind != "unsafe exponential"
        and not score.mutant.operator.startswith("softmax")
    ]
    assert others == []
    assert all(score.relative < 0.5 for score in missed)


def test_an_equivalent_one_left_every_byte_as_it_was_and_passes(
    scores: tuple[Score, ...],
) -> None:
    for score in scores:
        if score.outcome == "equivalent":
            assert (score.observed, score.status) == ("", "pass")


def test_wrong_ones_are_far_from_right_ones(scores: tuple[Score, ...]) -> None:
    clean = max(score.clean for score in scores)
    facts = summary(scores, clean)
    assert clean < 1 < facts["smallest_detected"]
    assert facts["margin"] > 4


def test_the_report_lists_what_was_missed_and_what_is_equivalent(
    scores: tuple[Score, ...],
) -> None:
    text = "\n".join(lines(scores, 0.5))
    for score in scores:
        listed = f"  {score.mutant.name} {score.mutant.operator}: " in text
        assert listed == (score.outcome in ("missed", "equivalent"))
    assert "observable mutants detected" in text


def test_a_score_is_plain_data(scores: tuple[Score, ...]) -> None:
    again = json.loads(json.dumps([score.to_json() for score in scores], allow_nan=False))
    assert [each["name"] for each in again] == [score.mutant.name for score in scores]
