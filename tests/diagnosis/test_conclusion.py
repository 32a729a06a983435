"""The table that turns evidence into a cause, row by row."""

from __future__ import annotations

from typing import Any

import pytest

from tapml.diagnosis.conclusion import Evidence, Variant, conclude
from tapml.diagnosis.variants import Trial

RIGHT, WRONG = Trial("", "pass", "pass", right=True), Trial("", "fail", "fail")
UNTRIED, LATE = Trial("", None, "not replayed"), Trial("", None, "not tried", late=True)
ALL_WRONG: dict[Variant, Trial] = {
    "again": WRONG, "recompiled": UNTRIED, "precise": WRONG, "unoptimised": WRONG, "second": WRONG,
    "plain": WRONG, "serial": WRONG, "unfused": WRONG,
}  # fmt: skip


def cause(changes: dict[str, Trial], suspect: str = "target") -> str:
    trials: dict[Any, Trial] = {**ALL_WRONG, **changes}
    rule = conclude(Evidence(trials, suspect))
    assert rule is not None
    return rule.cause


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "code generator"),
        ({"second": UNTRIED}, "code generator"),
        ({"unfused": UNTRIED}, "code generator"),
        ({"again": RIGHT}, "unknown"),
        ({"again": UNTRIED}, "unknown"),
        ({"recompiled": RIGHT}, "kernel text"),
        ({"recompiled": RIGHT, "precise": RIGHT}, "kernel text"),
        ({"precise": RIGHT}, "math"),
        ({"precise": RIGHT, "default math": RIGHT}, "math"),
        ({"precise": RIGHT, "plain": RIGHT}, "math"),
        ({"unoptimised": RIGHT, "second": RIGHT}, "driver"),
        ({"unoptimised": RIGHT, "second": RIGHT, "plain": RIGHT}, "driver"),
        ({"second": RIGHT}, "driver"),
        ({"second": RIGHT, "unfused": RIGHT}, "driver"),
        ({"unoptimised": RIGHT, "second": UNTRIED}, "driver"),
        ({"plain": RIGHT}, "schedule"),
        ({"serial": RIGHT}, "schedule"),
        ({"plain": RIGHT, "unfused": RIGHT}, "schedule"),
        ({"plain": RIGHT, "second": RIGHT}, "schedule"),
        ({"plain": RIGHT, "second": RIGHT, "checked": WRONG}, "schedule"),
        ({"plain": RIGHT, "second": RIGHT, "checked": RIGHT}, "driver"),
        ({"plain": RIGHT, "second": RIGHT, "checked": UNTRIED}, "schedule"),
        ({"unoptimised": RIGHT, "second": RIGHT, "plain": RIGHT, "checked": WRONG}, "schedule"),
        ({"second": RIGHT, "checked": WRONG}, "code generator"),
        ({"unoptimised": RIGHT, "second": UNTRIED, "checked": WRONG}, "code generator"),
        ({"second": RIGHT, "checked": WRONG, "unfused": RIGHT}, "fusion"),
        ({"unfused": RIGHT}, "fusion"),
        # What is wrong on two drivers is not the first one's optimiser.
        ({"unoptimised": RIGHT, "unfused": RIGHT}, "fusion"),
        ({"plain": LATE, "serial": LATE, "unfused": LATE}, "unknown"),
    ],
)
def test_what_stops_failing_names_the_cause(changes: dict[str, Trial], expected: str) -> None:
    assert cause(changes) == expected


@pytest.mark.parametrize("suspect", ["reference", "importer", "twin"])
def test_a_kernel_that_nobody_suspects_is_not_accused(suspect: str) -> None:
    assert cause({}, suspect) == "unknown"


def test_the_target_is_accused_although_the_reference_is_off_as_well() -> None:
    assert cause({}, "target and reference") == "code generator"


@pytest.mark.parametrize("known", range(1, 8))
def test_nothing_is_said_before_everything_was_tried(known: int) -> None:
    trials = dict(list(ALL_WRONG.items())[:known])
    assert conclude(Evidence(trials, "target")) is None


def test_two_rules_of_one_cause_say_different_things() -> None:
    alone = conclude(Evidence({**ALL_WRONG, "plain": RIGHT}, "target"))
    elsewhere = conclude(Evidence({**ALL_WRONG, "plain": RIGHT, "second": RIGHT}, "target"))
    assert alone is not None
    assert elsewhere is not None
    assert "--check" in elsewhere.sentence
    assert "--check" not in alone.sentence
