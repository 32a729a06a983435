"""What became worse between two outcomes, and what is information only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tapml.diff.compare import Diff, compare
from tapml.diff.outcome import read_outcome
from tests.diff.replays import Json, replay, write

INF = float("inf")


def diff(tmp_path: Path, first: Json, second: Json, factor: float = 4.0) -> Diff:
    return compare(
        read_outcome(write(tmp_path / "first.json", first)),
        read_outcome(write(tmp_path / "second.json", second)),
        factor=factor,
    )


@pytest.mark.parametrize(
    ("before", "after", "change", "gate"),
    [
        ("pass", "pass", "same", True),
        ("pass", "degraded", "worse", False),
        ("pass", "fail", "worse", False),
        ("pass", "not run", "worse", False),
        ("degraded", "fail", "worse", False),
        ("not run", "fail", "worse", False),
        ("fail", "fail", "same", True),
        ("fail", "degraded", "better", True),
        ("fail", "pass", "better", True),
        ("not run", "pass", "better", True),
        # It may still be wrong: nobody looked.
        ("fail", "not run", "changed", True),
    ],
)
def test_what_becomes_of_a_status(
    tmp_path: Path, before: str, after: str, change: str, gate: bool
) -> None:
    found = diff(tmp_path, replay(add={"t": (before, 1.0)}), replay(add={"t": (after, 1.0)}))
    (operator,) = found.operators
    assert operator.operator.change == change
    assert [test.change for test in operator.tests] == ([] if change == "same" else [change])
    assert found.worse == (not gate)


def test_what_is_missing_closes_the_gate_and_what_is_new_and_right_does_not(
    tmp_path: Path,
) -> None:
    one, two = {"a": ("pass", 1.0)}, {"a": ("pass", 1.0), "b": ("pass", 1.0)}
    assert not diff(tmp_path, replay(add=one), replay(add=two, mul=one)).worse
    fewer_tests = diff(tmp_path, replay(add=two), replay(add=one))
    assert fewer_tests.worse
    assert [(test.name, test.change) for test in fewer_tests.operators[0].tests] == [
        ("b", "missing")
    ]
    assert diff(tmp_path, replay(add=one, mul=one), replay(add=one)).worse
    new_and_wrong = replay(add=one, mul={"a": ("fail", INF)})
    assert diff(tmp_path, replay(add=one), new_and_wrong).worse


def test_new_failures_come_first(tmp_path: Path) -> None:
    right, wrong = {"t": ("pass", 1.0)}, {"t": ("fail", INF)}
    found = diff(
        tmp_path,
        replay(same=right, better=wrong, worse=right, missing=right),
        replay(same=right, better=right, worse=wrong, new=right),
    )
    names = [each.operator.name for each in found.operators]
    assert names == ["worse", "missing", "better", "new", "same"]


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (2.0, 7.9, False),
        (2.0, 8.1, True),
        (8.1, 2.0, True),
        # Far below one unit of (sensitivity + ulp) nothing is said.
        (0.001, 0.9, False),
        (0.0, 0.0, False),
        (1.0, INF, True),
        (INF, INF, False),
        (float("nan"), 1.0, True),
    ],
)
def test_a_ratio_is_shown_beyond_the_factor_and_closes_no_gate(
    tmp_path: Path, before: float, after: float, shown: bool
) -> None:
    found = diff(tmp_path, replay(add={"t": ("pass", before)}), replay(add={"t": ("pass", after)}))
    (operator,) = found.operators
    assert operator.operator.ratio_changed == shown
    assert operator.differs == shown
    assert not found.worse


def test_circumstances_that_differ_are_named(tmp_path: Path) -> None:
    first, second = replay(add={"t": ("pass", 1.0)}), replay(add={"t": ("pass", 1.0)})
    second["device"]["driver_version"] = "2.0"
    second["versions"] = {"apache-tvm": "0.28.0", "torch": "2.13"}
    second["policy_hash"] = "1" * 64
    facts = {fact.name: (fact.first, fact.second) for fact in diff(tmp_path, first, second).facts}
    assert facts == {
        "driver": ("1.0", "2.0"),
        "policy": ("0" * 64, "1" * 64),
        "apache-tvm": ("0.27.0", "0.28.0"),
        "torch": (None, "2.13"),
    }


def test_it_is_strict_json(tmp_path: Path) -> None:
    found = diff(
        tmp_path, replay(add={"t": ("pass", 1.0)}), replay(add={"t": ("fail", float("nan"))})
    )
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert plain["format"] == "tapml-diff/1"
    assert plain["worse"] is True
    (operator,) = plain["operators"]
    assert operator["operator"]["second_ratio"] == "nan"
    assert operator["operator"]["reason"] == "why add is as it is"


def test_time_is_information(tmp_path: Path) -> None:
    first, second = replay(add={"t": ("pass", 1.0)}), replay(add={"t": ("pass", 1.0)})
    second["operators"][0]["tests"][0]["kernel_seconds"] = 2.0
    found = diff(tmp_path, first, second)
    (time,) = found.times()
    # Each test runs twice.
    assert (time.operator, time.first, time.second) == ("add", 0.001, 1.0)
    assert not found.worse
