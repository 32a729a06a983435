"""Wrong kernels made by rule and not by choice are found, each at its own operator."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from scripts.mutants.kinds import KINDS
from scripts.mutants.report import lines, summary, table
from scripts.mutants.scoring import Score
from tapml.carving.suite import Suite
from tapml.compare.limits import default_limits
from tests.mutants.conftest import COUNT
from tests.offload.sessions import FinishedSession

pytestmark = pytest.mark.slow

EPSILON = 1e-6
"""That of the tiny model's norms."""


def test_two_of_every_kind_were_made_and_run(scores: tuple[Score, ...]) -> None:
    rows = {row["kind"]: row for row in table(scores)}
    assert set(rows) == {*KINDS, "all"}
    assert all(rows[kind]["made"] == 2 for kind in KINDS)
    assert rows["all"]["made"] == COUNT
    assert rows["all"]["built"] >= COUNT - 2
    assert rows["all"]["observable"] >= 20


@pytest.fixture(scope="module")
def suite(finished: FinishedSession) -> Iterator[Suite]:
    with Suite.open(finished.folder / "suite") as opened:
        yield opened


def is_lost_in_its_sum(suite: Suite, operator: str, rule: str, before: str) -> bool:
    """Whether one per cent of a norm's epsilon is less than a right kernel may be off.

    In float64, so of the numbers alone: a root moves by half of what its sum moves by, and an ulp
    is at least 2**-24 of a number.
    """
    if "rms_norm" not in operator or rule != "one per cent more":
        return False
    if np.float32(before.rstrip("f")) != np.float32(EPSILON):
        return False
    inputs = (test.read_inputs()[0].astype(np.float64) for test in suite.tests_of(operator))
    smallest = min(float(np.square(x).mean(-1).min()) for x in inputs)
    moved = 0.01 * EPSILON / (smallest + EPSILON) / 2
    return moved * 2.0**24 < default_limits("float32", "normalisation").passing


def computes_as_well(suite: Suite, score: Score) -> bool:
    """Whether no number the model gives could tell a mutant from a right kernel."""
    site, operator = score.mutant.site, score.mutant.operator
    # An exponential that would overflow does not where the carved numbers are small, and any number
    # near the largest will do for what a softmax subtracts.
    if site.kind == "unsafe exponential" or operator.startswith("softmax"):
        return True
    return is_lost_in_its_sum(suite, operator, site.rule, site.before)


def test_a_percent_of_an_epsilon_alone_is_lost_in_its_sum(suite: Suite) -> None:
    norm = next(name for name in suite.operators if "rms_norm" in name)
    assert is_lost_in_its_sum(suite, norm, "one per cent more", "9.99999997e-07f")
    assert not is_lost_in_its_sum(suite, norm, "twice", "9.99999997e-07f")
    assert not is_lost_in_its_sum(suite, norm, "one per cent more", "7.20000000e+01f")


def test_every_one_that_changes_a_bit_is_found_unless_it_computes_as_well(
    scores: tuple[Score, ...], suite: Suite
) -> None:
    missed = [score for score in scores if score.outcome == "missed"]
    assert [score for score in missed if not computes_as_well(suite, score)] == []
    # A percent of an epsilon may take more of its limit; how much is told in float64.
    others = [score for score in missed if score.mutant.site.kind != "constant"]
    assert all(score.relative < 0.5 for score in others)


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
