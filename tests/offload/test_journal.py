"""The journal keeps what it is given, in order, and says clearly what it cannot read."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tapml.offload.journal import Journal
from tapml.offload.verdict_key import VerdictKey, hash_parts
from tapml_targets.errors import InputError, SetupError

TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
DATA = st.dictionaries(TEXT, JSON, max_size=5)
STATUSES = st.sampled_from(["pass", "degraded", "fail", "not run"])


def key_of(**parts: str) -> VerdictKey:
    return VerdictKey(hash_parts(**parts), parts)


relaxed = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[], Path]:
    """Paths of new journals."""
    counter = iter(range(10**6))
    return lambda: tmp_path / f"journal-{next(counter)}.sqlite"


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


@pytest.mark.parametrize("text", ["{", "[]", "7", "[" * 100_000, b"\xff", None])
@pytest.mark.parametrize("column", ["data", "parts"])
def test_a_verdict_edited_to_another_kind_counts_as_not_made(
    tmp_path: Path, column: str, text: object
) -> None:
    path = tmp_path / "journal.sqlite"
    key = key_of(kernel="k")
    with Journal(path) as journal:
        journal.record(key, "operator", "softmax", "fail", {"status": "fail"})
        journal.record(key, "operator", "softmax", "pass", GOOD["operator"])
    edit(path, f"UPDATE verdict SET {column} = ? WHERE id = 2", b"" if text is None else text)
    with Journal(path) as journal:
        assert journal.verdict(key) is None, "an older one does not take its place"
        assert [each.status for each in journal.verdicts()] == ["fail"]
        (said,) = journal.passed_over
    assert f"{path}, verdict 2 (operator 'softmax') is not as tapml writes it" in said
    assert said.endswith("it counts as not made")


@pytest.mark.parametrize(
    ("stage", "place", "value", "words"),
    [
        ("operator", ("times",), 7, "times: expected an object, got 7"),
        ("operator", ("times", "entries"), [1], "times.entries: expected an object"),
        ("operator", ("times", "entries", "decode"), "x", "entries.decode: expected an object"),
        ("operator", ("times", "entries", "decode"), {}, "entries.decode.calls is missing"),
        ("operator", ("times", "target_ms"), "fast", "times.target_ms: expected a number or null"),
        ("operator", ("worst_ratio",), "big", "worst_ratio: expected a number or null"),
        ("operator", ("tests",), True, "tests: expected a whole number"),
        ("operator", ("suspects",), [1], "suspects[0]: expected text"),
        ("operator", ("worst",), None, "worst: expected an object"),
        ("operator", ("worst", "outputs", 0), {}, "worst.outputs[0].expected is missing"),
        ("operator", ("worst", "outputs", 0, "passing"), "nan", "expected a finite number"),
        ("model", ("moved_bytes",), [], "moved_bytes: expected an object"),
        ("model", ("moved_bytes", "decode"), 7, "moved_bytes.decode: expected an object"),
        ("model", ("moved_bytes", "decode", "moved"), "8", "decode.moved: expected a whole number"),
        ("final", ("headline",), 1, "headline: expected text"),
        ("final", ("prompts", 0, "tokens"), "1", "prompts[0].tokens: expected a list"),
    ],
)  # fmt: skip
def test_a_verdict_edited_to_another_shape_counts_as_not_made(
    tmp_path: Path, stage: str, place: tuple[Any, ...], value: object, words: str
) -> None:
    path = tmp_path / "journal.sqlite"
    key = key_of(kernel="k")
    with Journal(path) as journal:
        journal.record(key, stage, "softmax", "pass", GOOD[stage])
        assert journal.verdict(key) is not None
        assert not journal.passed_over
    edit(path, "UPDATE verdict SET data = ?", json.dumps(with_leaf(GOOD[stage], place, value)))
    with Journal(path) as journal:
        assert journal.verdict(key) is None
        assert journal.latest(stage, "softmax") is None
        (said,) = journal.passed_over
        assert words in said


@pytest.mark.parametrize(
    ("column", "value"), [("time", "noon"), ("status", "fine"), ("parts", '{"kernel": 7}')]
)
def test_what_stands_beside_a_verdicts_data_is_held_against_its_shape(
    tmp_path: Path, column: str, value: str
) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(path) as journal:
        journal.record(key_of(kernel="k"), "operator", "softmax", "pass", GOOD["operator"])
    edit(path, f"UPDATE verdict SET {column} = ?", value)
    with Journal(path) as journal:
        assert journal.verdicts() == []
        assert len(journal.passed_over) == 1


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
def test_an_event_of_another_shape_counts_as_not_told(
    tmp_path: Path, kind: str, data: dict[str, Any]
) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(path) as journal:
        journal.append("run", process=1)
        journal.append("run", process=2)
    edit(path, "UPDATE event SET kind = ?, data = ? WHERE id = 2", kind, json.dumps(data))
    with Journal(path) as journal:
        assert [name for _, name, _ in journal.events()] == ["run"]
        (said,) = journal.passed_over
    assert f"event 2 ('{kind}') is not as tapml writes it" in said


@relaxed
@given(events=st.lists(st.tuples(TEXT, DATA), max_size=8))
def test_events_come_back_in_order(
    fresh: Callable[[], Path], events: list[tuple[str, dict[str, Any]]]
) -> None:
    path = fresh()
    with Journal(path) as journal:
        for kind, data in events:
            journal.append(kind, **{name: value for name, value in data.items() if name != "kind"})
    with Journal(path) as journal:
        read = [(kind, data) for _, kind, data in journal.events()]
    assert read == [
        (kind, {name: value for name, value in data.items() if name != "kind"})
        for kind, data in events
    ]


@relaxed
@given(verdicts=st.lists(st.tuples(st.integers(0, 3), TEXT, STATUSES, DATA), max_size=8))
def test_the_last_verdict_under_a_key_counts(
    fresh: Callable[[], Path], verdicts: list[tuple[int, str, str, dict[str, Any]]]
) -> None:
    path = fresh()
    last: dict[str, tuple[VerdictKey, str, str, dict[str, Any]]] = {}
    with Journal(path) as journal:
        for number, subject, status, data in verdicts:
            key = key_of(number=str(number))
            journal.record(key, "operator", subject, status, data)
            last[key.hash] = (key, subject, status, data)
    with Journal(path) as journal:
        for key, *expected in last.values():
            found = journal.verdict(key)
            assert found is not None
            assert [found.subject, found.status, found.data] == expected
            assert (found.key, found.parts) == (key.hash, key.parts)
        assert journal.verdict(key_of(number="another")) is None


@relaxed
@given(verdicts=st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), STATUSES), max_size=9))
def test_every_verdict_is_kept_and_the_newest_of_a_subject_is_found(
    fresh: Callable[[], Path], verdicts: list[tuple[int, str, str]]
) -> None:
    path = fresh()
    with Journal(path) as journal:
        for number, subject, status in verdicts:
            journal.record(key_of(number=str(number)), "operator", subject, status, {})
    with Journal(path) as journal:
        kept = [(each.parts["number"], each.subject, each.status) for each in journal.verdicts()]
        assert kept == [(str(number), subject, status) for number, subject, status in verdicts]
        for name in "ab":
            mine = [each for each in kept if each[1] == name]
            assert [
                (each.parts["number"], each.subject, each.status)
                for each in journal.verdicts("operator", name)
            ] == mine
            newest = journal.latest("operator", name)
            assert (newest is None) == (not mine)
            assert newest is None or (newest.parts["number"], name, newest.status) == mine[-1]
        assert journal.latest("model", "a") is None


@relaxed
@given(facts=st.dictionaries(TEXT.filter(lambda name: name != "schema"), TEXT, max_size=5))
def test_settings_come_back(fresh: Callable[[], Path], facts: dict[str, str]) -> None:
    path = fresh()
    with Journal(path) as journal:
        for name, value in facts.items():
            journal.write_setting(name, value)
    with Journal(path) as journal:
        assert {name: journal.read_setting(name) for name in facts} == facts


def test_verdicts_of_one_stage_come_oldest_first(fresh: Callable[[], Path]) -> None:
    with Journal(fresh()) as journal:
        for stage, subject in (("operator", "a"), ("model", "b"), ("operator", "c")):
            journal.record(key_of(subject=subject), stage, subject, "pass", {})
        assert [each.subject for each in journal.verdicts("operator")] == ["a", "c"]
        assert [each.subject for each in journal.verdicts()] == ["a", "b", "c"]


def test_a_key_depends_on_every_part_and_its_name() -> None:
    keys = {
        hash_parts(kernel="a", body="b"),
        hash_parts(kernel="b", body="a"),
        hash_parts(kernel="a"),
        hash_parts(kernel="ab"),
        hash_parts(kernel="a", body="b", policy=""),
    }
    assert len(keys) == 5
    assert hash_parts(kernel="a", body="b") == hash_parts(body="b", kernel="a")


def test_another_schema_is_refused_with_both_numbers(fresh: Callable[[], Path]) -> None:
    path = fresh()
    with Journal(path) as journal:
        journal.write_setting("schema", "99")
    with pytest.raises(InputError, match=r"schema 99; this tapml reads schema \d"):
        Journal(path)


@pytest.mark.parametrize(
    "content",
    [b"not a database, but long enough to look at" * 20, b"SQLite format 3\0" + b"x" * 99],
)
def test_a_file_that_is_no_journal_is_refused(fresh: Callable[[], Path], content: bytes) -> None:
    path = fresh()
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not a journal"):
        Journal(path)


def test_a_damaged_journal_is_said_to_be_damaged(fresh: Callable[[], Path]) -> None:
    path = fresh()
    with Journal(path) as journal:
        for index in range(2000):
            journal.append("event", index=index, padding="x" * 50)
    content = bytearray(path.read_bytes())
    content[8192:-4096] = b"\xff" * (len(content) - 12288)
    path.write_bytes(content)
    with pytest.raises(InputError, match="is damaged"), Journal(path) as journal:
        list(journal.events())


def test_a_folder_that_is_not_there_is_a_setup_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"cannot write the journal .*fix the permissions"):
        Journal(tmp_path / "missing" / "journal.sqlite")


def test_a_full_disk_keeps_what_was_journaled(fresh: Callable[[], Path]) -> None:
    """SQLite's own limit on pages stands in for the disk's; it gives the same error."""
    path = fresh()
    with Journal(path) as journal:
        journal.append("first")
        journal._connection.execute("PRAGMA max_page_count = 12")
        with pytest.raises(SetupError, match=r"full.*What was journaled is kept; free some space"):
            for _ in range(100):
                journal.append("more", padding="x" * 1000)
    with Journal(path) as journal:
        kinds = [kind for _, kind, _ in journal.events()]
    assert kinds[0] == "first"
    assert set(kinds[1:]) <= {"more"}


def _append_forever(path: Path, begun: Event) -> None:
    with Journal(path) as journal:
        index = 0
        while True:
            journal.append("step", index=index)
            index += 1
            if index == 50:
                begun.set()


def test_a_killed_writer_loses_nothing_it_had_appended(fresh: Callable[[], Path]) -> None:
    path = fresh()
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    writer = context.Process(target=_append_forever, args=(path, begun), daemon=True)
    writer.start()
    assert begun.wait(60)
    assert writer.pid is not None
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    with Journal(path) as journal:
        indices = [data["index"] for _, _, data in journal.events()]
    assert indices == list(range(len(indices)))
    assert len(indices) >= 50


def test_it_can_be_read_while_it_is_written(fresh: Callable[[], Path]) -> None:
    path = fresh()
    with Journal(path) as writer, Journal(path) as reader:
        writer.append("step", index=0)
        assert [kind for _, kind, _ in reader.events()] == ["step"]


def test_times_are_when_it_happened(fresh: Callable[[], Path]) -> None:
    before = time.time()
    with Journal(fresh()) as journal:
        journal.append("step")
        ((moment, _, _),) = journal.events()
    assert before <= moment <= time.time()


def test_it_is_an_ordinary_database(fresh: Callable[[], Path]) -> None:
    """Anyone may look into it with the sqlite3 tool."""
    path = fresh()
    with Journal(path) as journal:
        journal.record(key_of(kernel="k"), "operator", "softmax", "pass", {"worst_ratio": 1.5})
    connection = sqlite3.connect(path)
    try:
        rows = connection.execute("SELECT subject, status FROM verdict").fetchall()
    finally:
        connection.close()
    assert rows == [("softmax", "pass")]
