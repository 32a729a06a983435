"""Wrong kernels made by rule and not by choice are found, each at its own operator."""

from __future__ import annotations

import json
from fnmatch import fnmatch

from scripts.mutants.kinds import KINDS
from scripts.mutants.report import lines, summary, table
from scripts.mutants.scoring import Score
from tests.mutants.conftest import COUNT

HARMLESS = (
    # One per cent of a norm's epsilon moves its result by less than float32 arithmetic does.
    ("*rms_norm*", "constant", "one per cent more", "9.99999997e-07f"),
    # The carved numbers are far below where the exponential overflows.
    ("*", "unsafe exponential", "*", "*"),
)
"""Operator, kind, rule and text of mutants that no verdict on the carved tests has to find."""


def test_two_of_every_kind_were_made_and_run(scores: tuple[Score, ...]) -> None:
    rows = {row["kind"]: row for row in table(scores)}
    assert set(rows) == {*KINDS, "all"}
    assert all(rows[kind]["made"] == 2 for kind in KINDS)
    assert rows["all"]["made"] == COUNT
    assert rows["all"]["built"] >= COUNT - 2
    assert rows["all"]["observable"] >= 20


def is_harmless(score: Score) -> bool:
    """Whether a mutant is known to compute as well as the right kernel on the carved numbers."""
    mutant = score.mutant
    place = (mutant.site.kind, mutant.site.rule, mutant.site.before)
    return any(
        fnmatch(mutant.operator, operator) and all(map(fnmatch, place, patterns))
        for operator, *patterns in HARMLESS
    )


def test_every_one_that_changes_a_bit_is_found_unless_it_is_known_to_be_harmless(
    scores: tuple[Score, ...],
) -> None:
    missed = [score for score in scores if score.outcome == "missed"]
    assert [score for score in missed if not is_harmless(score)] == []


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
