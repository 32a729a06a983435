"""Verdicts and events of a migration are held against their types when they are read."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tapml.runs.result_key import ResultKey
from tapml.session.journal import open_journal

GOOD: dict[str, dict[str, Any]] = {
    "operator": {
        "status": "pass", "tests": 1, "worst_ratio": 1.5, "suspects": [], "reason": "",
        "worst": {"outputs": [{"expected": 1.0, "actual": 1.0, "ratio": "inf", "passing": 8.0,
                               "degraded": 32.0}]},
        "times": {"target_ms": 0.1, "entries": {"decode": {"calls": 1, "target_ms": 0.1}}},
    },
    "model": {"status": "pass", "moved_bytes": {"decode": {"runs": 1, "moved": 8, "minimum": 8}}},
    "final": {"status": "pass", "headline": "x", "text": "y", "prompts": [{"tokens": [1]}]},
}  # fmt: skip


def edit(path: Path, statement: str, *values: object) -> None:
    """What somebody with another tool does to a journal."""
    with sqlite3.connect(path) as edited:
        edited.execute(statement, values)
    edited.close()


def with_leaf(data: Any, place: tuple[Any, ...], value: object) -> Any:
    """The same data with something else at one place."""
    copy = json.loads(json.dumps(data))
    inner = copy
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    return copy


@pytest.mark.parametrize(
    ("stage", "place", "value", "words"),
    [
        ("operator", ("times",), 7, "Expected `object`, got `int` - at `$.times`"),
        ("operator", ("times", "entries"), [1], "got `array` - at `$.times.entries`"),
        ("operator", ("times", "entries", "decode"), "x", "at `$.times.entries[...]`"),
        ("operator", ("times", "entries", "decode"), {}, "missing required field `calls`"),
        ("operator", ("times", "target_ms"), "fast", "Expected `float | null`, got `str`"),
        ("operator", ("worst_ratio",), "big", "Expected `float | null`, got `str`"),
        ("operator", ("tests",), True, "Expected `int`, got `bool` - at `$.tests`"),
        ("operator", ("suspects",), [1], "Expected `str`, got `int` - at `$.suspects[0]`"),
        ("operator", ("worst",), None, "Expected `object`, got `null` - at `$.worst`"),
        ("operator", ("worst", "outputs", 0), {}, "missing required field `expected`"),
        ("operator", ("worst", "outputs", 0, "ratio"), "large", "matching regex '^(nan|-?inf)$'"),
        ("operator", ("worst", "outputs", 0, "passing"), "nan", "Expected `float`, got `str`"),
        ("operator", ("worst", "outputs", 0, "passing"), 1e309, "Expected `float` <= 1e+308"),
        ("model", ("moved_bytes",), [], "Expected `object`, got `array` - at `$.moved_bytes`"),
        ("model", ("moved_bytes", "decode"), 7, "at `$.moved_bytes[...]`"),
        ("model", ("moved_bytes", "decode", "moved"), "8", "at `$.moved_bytes[...].moved`"),
        ("final", ("headline",), 1, "Expected `str`, got `int` - at `$.headline`"),
        ("final", ("prompts", 0, "tokens"), "1", "got `str` - at `$.prompts[0].tokens`"),
    ],
)  # fmt: skip
def test_a_verdict_edited_to_another_shape_counts_as_missing(
    tmp_path: Path, stage: str, place: tuple[Any, ...], value: object, words: str
) -> None:
    path = tmp_path / "journal.sqlite"
    key = ResultKey.of(kernel="k")
    with open_journal(path) as journal:
        journal.record(key, stage, "softmax", "pass", GOOD[stage])
        assert journal.result(key) is not None
        assert not journal.passed_over
    edit(path, "UPDATE result SET data = ?", json.dumps(with_leaf(GOOD[stage], place, value)))
    with open_journal(path) as journal:
        assert journal.result(key) is None
        assert journal.latest(stage, "softmax") is None
        (said,) = journal.passed_over
        assert words in said


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("failed", {"operator": 7, "reason": "x"}),
        ("failed", {"operator": "softmax"}),
        ("phase", {"name": "x", "seconds": "long", "group": "rooting"}),
        ("moved_bytes", {"decode": 7}),
        ("strategy", {"culprits": "softmax"}),
        ("verdicts", {"why": []}),
    ],
)
def test_an_event_of_another_shape_counts_as_missing(
    tmp_path: Path, kind: str, data: dict[str, Any]
) -> None:
    path = tmp_path / "journal.sqlite"
    with open_journal(path) as journal:
        journal.append("run", process=1)
        journal.append("run", process=2)
    edit(path, "UPDATE event SET kind = ?, data = ? WHERE id = 2", kind, json.dumps(data))
    with open_journal(path) as journal:
        assert [name for _, name, _ in journal.events()] == ["run"]
        (said,) = journal.passed_over
    assert f"event 2 ('{kind}') is malformed" in said
