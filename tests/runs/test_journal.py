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

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tapml.runs.journal import Journal
from tapml.runs.kind import RunKind
from tapml.runs.result_key import ResultKey, hash_parts
from tapml_targets.errors import InputError, SetupError


class Cooked(msgspec.Struct):
    """What a result of the stage ``cook`` holds."""

    minutes: float
    steps: dict[str, int] = {}


KIND = RunKind(
    "tapml-cooking/1",
    statuses=("pass", "degraded", "fail", "not run"),
    results={"cook": Cooked},
    events={"tasted": dict[str, int]},
    restart="cook again",
)
TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
DATA = st.dictionaries(TEXT, JSON, max_size=5)
STATUSES = st.sampled_from(["pass", "degraded", "fail", "not run"])


relaxed = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[], Path]:
    """Paths of new journals."""
    counter = iter(range(10**6))
    return lambda: tmp_path / f"journal-{next(counter)}.sqlite"


def edit(path: Path, statement: str, *values: object) -> None:
    """What somebody with another tool does to a journal."""
    with sqlite3.connect(path) as edited:
        edited.execute(statement, values)
    edited.close()


@pytest.mark.parametrize("text", ["{", "[]", "7", "[" * 100_000, b"\xff", None])
@pytest.mark.parametrize("column", ["data", "parts"])
def test_a_result_edited_to_another_kind_counts_as_missing(
    tmp_path: Path, column: str, text: object
) -> None:
    path = tmp_path / "journal.sqlite"
    key = ResultKey.of(kernel="k")
    with Journal(path, KIND) as journal:
        journal.record(key, "cook", "soup", "fail", {"minutes": 3})
        journal.record(key, "cook", "soup", "pass", {"minutes": 30})
    edit(path, f"UPDATE result SET {column} = ? WHERE id = 2", b"" if text is None else text)
    with Journal(path, KIND) as journal:
        assert journal.result(key) is None, "an older one does not take its place"
        assert [each.status for each in journal.results()] == ["fail"]
        (said,) = journal.passed_over
    assert f"{path}: cook result 2 ('soup') is malformed" in said
    assert said.endswith("and counts as missing")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "Object missing required field `minutes`"),
        ({"minutes": "30"}, "Expected `float`, got `str` - at `$.minutes`"),
        ({"minutes": True}, "Expected `float`, got `bool` - at `$.minutes`"),
        ({"minutes": 1, "steps": {"peel": 1.5}}, "Expected `int`, got `float` - at `$.steps[...]`"),
    ],
)
def test_a_result_of_another_shape_counts_as_missing(
    tmp_path: Path, data: dict[str, Any], words: str
) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(path, KIND) as journal:
        journal.record(ResultKey.of(), "cook", "soup", "pass", {"minutes": 1})
        journal.append("tasted", salt=1)
    edit(path, "UPDATE result SET data = ?", json.dumps(data))
    edit(path, "UPDATE event SET data = ?", '{"salt": "little"}')
    with Journal(path, KIND) as journal:
        assert journal.result(ResultKey.of()) is None
        assert journal.latest("cook", "soup") is None
        assert list(journal.events()) == []
        of_result, of_event = journal.passed_over
    assert words in of_result
    assert "event 1 ('tasted')" in of_event


def test_a_field_that_an_older_tapml_did_not_write_is_no_fault(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.sqlite", KIND) as journal:
        journal.record(ResultKey.of(), "cook", "soup", "pass", {"minutes": 1, "pot": "blue"})
        found = journal.result(ResultKey.of())
    assert found is not None
    assert found.data == {"minutes": 1, "pot": "blue"}


def test_a_row_larger_than_any_that_is_written_is_neither_written_nor_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(path, KIND) as journal:
        journal.append("long", text="x" * 100_000)
    monkeypatch.setattr("tapml.runs.journal._LARGEST_ROW", 10_000)
    with Journal(path, KIND) as journal:
        with pytest.raises(SetupError, match="too big"):
            journal.append("long", text="x" * 100_000)
        with pytest.raises(InputError, match=r"too big.*cook again"):
            list(journal.events())


def test_a_journal_of_another_kind_of_work_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(path, KIND) as journal:
        journal.write_setting("format", "tapml-baking/1")
    with pytest.raises(InputError, match="has format 'tapml-baking/1', expected 'tapml-cooking/1'"):
        Journal(path, KIND)


def test_it_is_read_without_being_changed(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "journal.sqlite"
    path.parent.mkdir()
    with Journal(path, KIND) as writer:
        writer.append("step")
        with Journal(path, KIND, readonly=True) as reader:
            assert [kind for _, kind, _ in reader.events()] == ["step"]
            with pytest.raises(SetupError, match="readonly"):
                reader.append("step")
    with pytest.raises(SetupError, match="cannot read the journal"):
        Journal(tmp_path / "missing.sqlite", KIND, readonly=True)
    assert not (tmp_path / "missing.sqlite").exists()


@pytest.mark.parametrize(
    ("column", "value"), [("time", "noon"), ("status", "fine"), ("parts", '{"kernel": 7}')]
)
def test_what_stands_beside_a_results_data_is_held_against_its_shape(
    tmp_path: Path, column: str, value: str
) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(path, KIND) as journal:
        journal.record(ResultKey.of(kernel="k"), "cook", "soup", "pass", {"minutes": 1})
    edit(path, f"UPDATE result SET {column} = ?", value)
    with Journal(path, KIND) as journal:
        assert journal.results() == []
        assert len(journal.passed_over) == 1


@relaxed
@given(events=st.lists(st.tuples(TEXT, DATA), max_size=8))
def test_events_come_back_in_order(
    fresh: Callable[[], Path], events: list[tuple[str, dict[str, Any]]]
) -> None:
    path = fresh()
    with Journal(path, KIND) as journal:
        for kind, data in events:
            journal.append(kind, **{name: value for name, value in data.items() if name != "kind"})
    with Journal(path, KIND) as journal:
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
    last: dict[str, tuple[ResultKey, str, str, dict[str, Any]]] = {}
    with Journal(path, KIND) as journal:
        for number, subject, status, data in verdicts:
            key = ResultKey.of(number=str(number))
            journal.record(key, "operator", subject, status, data)
            last[key.hash] = (key, subject, status, data)
    with Journal(path, KIND) as journal:
        for key, *expected in last.values():
            found = journal.result(key)
            assert found is not None
            assert [found.subject, found.status, found.data] == expected
            assert (found.key, found.parts) == (key.hash, key.parts)
        assert journal.result(ResultKey.of(number="another")) is None


@relaxed
@given(verdicts=st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), STATUSES), max_size=9))
def test_every_verdict_is_kept_and_the_newest_of_a_subject_is_found(
    fresh: Callable[[], Path], verdicts: list[tuple[int, str, str]]
) -> None:
    path = fresh()
    with Journal(path, KIND) as journal:
        for number, subject, status in verdicts:
            journal.record(ResultKey.of(number=str(number)), "operator", subject, status, {})
    with Journal(path, KIND) as journal:
        kept = [(each.parts["number"], each.subject, each.status) for each in journal.results()]
        assert kept == [(str(number), subject, status) for number, subject, status in verdicts]
        for name in "ab":
            mine = [each for each in kept if each[1] == name]
            assert [
                (each.parts["number"], each.subject, each.status)
                for each in journal.results("operator", name)
            ] == mine
            newest = journal.latest("operator", name)
            assert (newest is None) == (not mine)
            assert newest is None or (newest.parts["number"], name, newest.status) == mine[-1]
        assert journal.latest("model", "a") is None


@relaxed
@given(facts=st.dictionaries(TEXT.filter(lambda name: name != "schema"), TEXT, max_size=5))
def test_settings_come_back(fresh: Callable[[], Path], facts: dict[str, str]) -> None:
    path = fresh()
    with Journal(path, KIND) as journal:
        for name, value in facts.items():
            journal.write_setting(name, value)
    with Journal(path, KIND) as journal:
        assert {name: journal.read_setting(name) for name in facts} == facts


def test_verdicts_of_one_stage_come_oldest_first(fresh: Callable[[], Path]) -> None:
    with Journal(fresh(), KIND) as journal:
        for stage, subject in (("operator", "a"), ("model", "b"), ("operator", "c")):
            journal.record(ResultKey.of(subject=subject), stage, subject, "pass", {})
        assert [each.subject for each in journal.results("operator")] == ["a", "c"]
        assert [each.subject for each in journal.results()] == ["a", "b", "c"]


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
    with Journal(path, KIND) as journal:
        journal.write_setting("schema", "99")
    with pytest.raises(InputError, match=r"schema 99; this tapml reads schema \d"):
        Journal(path, KIND)


@pytest.mark.parametrize(
    "content",
    [b"not a database, but long enough to look at" * 20, b"SQLite format 3\0" + b"x" * 99],
)
def test_a_file_that_is_no_journal_is_refused(fresh: Callable[[], Path], content: bytes) -> None:
    path = fresh()
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not a journal"):
        Journal(path, KIND)


def test_a_damaged_journal_is_said_to_be_damaged(fresh: Callable[[], Path]) -> None:
    path = fresh()
    with Journal(path, KIND) as journal:
        for index in range(2000):
            journal.append("event", index=index, padding="x" * 50)
    content = bytearray(path.read_bytes())
    content[8192:-4096] = b"\xff" * (len(content) - 12288)
    path.write_bytes(content)
    with pytest.raises(InputError, match="is damaged"), Journal(path, KIND) as journal:
        list(journal.events())


def test_a_folder_that_is_not_there_is_a_setup_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"cannot write the journal .*fix the permissions"):
        Journal(tmp_path / "missing" / "journal.sqlite", KIND)


def test_a_full_disk_keeps_what_was_journaled(fresh: Callable[[], Path]) -> None:
    """SQLite's own limit on pages stands in for the disk's; it gives the same error."""
    path = fresh()
    with Journal(path, KIND) as journal:
        journal.append("first")
        journal._connection.execute("PRAGMA max_page_count = 12")
        with pytest.raises(SetupError, match=r"full.*Earlier results are kept; free some space"):
            for _ in range(100):
                journal.append("more", padding="x" * 1000)
    with Journal(path, KIND) as journal:
        kinds = [kind for _, kind, _ in journal.events()]
    assert kinds[0] == "first"
    assert set(kinds[1:]) <= {"more"}


def _append_forever(path: Path, begun: Event) -> None:
    with Journal(path, KIND) as journal:
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
    with Journal(path, KIND) as journal:
        indices = [data["index"] for _, _, data in journal.events()]
    assert indices == list(range(len(indices)))
    assert len(indices) >= 50


def test_it_can_be_read_while_it_is_written(fresh: Callable[[], Path]) -> None:
    path = fresh()
    with Journal(path, KIND) as writer, Journal(path, KIND) as reader:
        writer.append("step", index=0)
        assert [kind for _, kind, _ in reader.events()] == ["step"]


def test_times_are_when_it_happened(fresh: Callable[[], Path]) -> None:
    before = time.time()
    with Journal(fresh(), KIND) as journal:
        journal.append("step")
        ((moment, _, _),) = journal.events()
    assert before <= moment <= time.time()


def test_it_is_an_ordinary_database(fresh: Callable[[], Path]) -> None:
    """Anyone may look into it with the sqlite3 tool."""
    path = fresh()
    with Journal(path, KIND) as journal:
        journal.record(ResultKey.of(kernel="k"), "cook", "soup", "pass", {"minutes": 1})
    connection = sqlite3.connect(path)
    try:
        rows = connection.execute("SELECT subject, status FROM result").fetchall()
    finally:
        connection.close()
    assert rows == [("soup", "pass")]
