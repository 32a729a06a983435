"""A journal of an older schema opens, whatever ends the process that upgrades it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tapml.runs.folder import since_last_run
from tapml.runs.result_key import UNKNOWN, ResultKey, hash_parts
from tapml.session.changes import what_changed
from tapml.session.journal import open_journal
from tapml_targets.errors import InputError
from tapml_targets.failpoints import VARIABLE

# As the first version of the journal made it.
_SCHEMA_1 = """
PRAGMA journal_mode=WAL;
CREATE TABLE IF NOT EXISTS session (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS event (
    id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS verdict (
    key TEXT PRIMARY KEY, time REAL NOT NULL, stage TEXT NOT NULL, subject TEXT NOT NULL,
    status TEXT NOT NULL, data TEXT NOT NULL
);
"""
_OPEN = (
    "import sys; from pathlib import Path; from tapml.session.journal import open_journal; "
    "open_journal(Path(sys.argv[1])).close()"
)

KEYS = {name: ResultKey(hash_parts(kernel=name), {"kernel": name}) for name in "abc"}
Rows = list[tuple[Any, ...]]


# As the second one made it.
_SCHEMA_2 = """
PRAGMA journal_mode=WAL;
CREATE TABLE session (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE event (
    id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL
);
CREATE TABLE verdict (
    id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, parts TEXT NOT NULL,
    time REAL NOT NULL, stage TEXT NOT NULL, subject TEXT NOT NULL, status TEXT NOT NULL,
    data TEXT NOT NULL
);
CREATE INDEX verdict_of_key ON verdict (key, id);
CREATE INDEX verdict_of_subject ON verdict (stage, subject, id);
"""
VERDICTS = (
    (KEYS["a"].hash, 10.0, "operator", "softmax", "fail", "{}"),
    (KEYS["b"].hash, 20.0, "operator", "softmax", "pass", '{"worst_ratio": 1.5}'),
    (KEYS["c"].hash, 30.0, "operator", "add", "pass", "{}"),
)
SETTINGS = {"model": "tiny", "format": "tapml-session/1"}


@pytest.fixture(params=[1, 2], ids=["schema 1", "schema 2"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A journal of an older schema with settings, events and three verdicts."""
    path = tmp_path / "session" / "journal.sqlite"
    path.parent.mkdir()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(_SCHEMA_1 if request.param == 1 else _SCHEMA_2)
    settings = {**SETTINGS, "schema": str(request.param)}
    connection.executemany("INSERT INTO session VALUES (?, ?)", settings.items())
    connection.executemany(
        "INSERT INTO event (time, kind, data) VALUES (?, ?, ?)",
        [(float(index), "step", f'{{"index": {index}}}') for index in range(5)],
    )
    if request.param == 1:
        # It knew no order but the time.
        rows = reversed(VERDICTS)
        connection.executemany("INSERT INTO verdict VALUES (?, ?, ?, ?, ?, ?)", rows)
    else:
        connection.executemany(
            "INSERT INTO verdict (key, parts, time, stage, subject, status, data)"
            ' VALUES (?, \'{"kernel": "x"}\', ?, ?, ?, ?, ?)',
            VERDICTS,
        )
    connection.close()
    return path


def schema_before(path: Path) -> str:
    """Of a journal that was upgraded."""
    return copy_of(path).stem.removeprefix("journal.schema")


def copy_of(path: Path) -> Path:
    (copy,) = path.parent.glob("journal.schema?.sqlite")
    return copy


def content(path: Path) -> dict[str, Rows]:
    """All rows of a whole database, by table."""
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {
            name: connection.execute(f"SELECT * FROM {name}").fetchall()
            for (name,) in tables.fetchall()
            if name != "sqlite_sequence"
        }
    finally:
        connection.close()


def open_in_a_process(path: Path, **environment: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _OPEN, path], env={**os.environ, **environment}, check=False
    )
    return done.returncode


def assert_migrated(path: Path) -> None:
    with open_journal(path) as journal:
        assert journal.read_setting("model") == "tiny"
        assert journal.read_setting("schema") == "3"
        assert [data["index"] for _, _, data in journal.events("step")] == [0, 1, 2, 3, 4]
        verdicts = [(each.subject, each.status, each.time) for each in journal.results()]
        assert verdicts == [
            ("softmax", "fail", 10.0), ("softmax", "pass", 20.0), ("add", "pass", 30.0)
        ]  # fmt: skip
        found = journal.result(KEYS["b"])
        assert found is not None
        assert (found.status, found.data) == ("pass", {"worst_ratio": 1.5})
        latest = journal.latest("operator", "softmax")
        assert latest == found
        why = what_changed(latest.parts, KEYS["c"])
        assert why == ((UNKNOWN,) if schema_before(path) == "1" else ("the kernel",))
    assert {each.name for each in path.parent.iterdir()} == {copy_of(path).name, "journal.sqlite"}


def test_it_opens_with_all_it_held_and_the_old_file_is_kept(old: Path) -> None:
    before = content(old)
    assert_migrated(old)
    kept = content(copy_of(old))
    assert kept == before
    assert_migrated(old)
    assert content(copy_of(old)) == kept, "once and for all"


def test_the_migration_is_an_event_for_the_next_run_to_tell(old: Path) -> None:
    with open_journal(old) as journal:
        (said,) = since_last_run(journal)
        assert said == (
            f"the journal was upgraded from schema {schema_before(old)} to 3; {copy_of(old)} is a "
            "copy of the old one"
        )
    with open_journal(old) as journal:
        assert since_last_run(journal) == [said], "also where another command opened it first"
        journal.append("run", process=1)
        assert since_last_run(journal) == []


def test_killed_at_any_boundary_it_is_of_one_schema_or_the_other(old: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    before = content(old)
    saved = {each.name: each.read_bytes() for each in old.parent.iterdir()}
    assert open_in_a_process(old, **{VARIABLE: f"record={record}"}) == 0
    sites = record.read_text().splitlines()
    assert {line.split()[1] for line in sites} == {"write", "fsync", "rename", "commit"}
    for site in sites:
        for each in old.parent.iterdir():
            each.unlink()
        for name, data in saved.items():
            (old.parent / name).write_bytes(data)
        assert open_in_a_process(old, **{VARIABLE: f"kill@{site}"}) == -signal.SIGKILL
        now = content(old)
        if "TABLE result" not in str(sqlite_schema(old)).replace('"', ""):
            assert now == before, site
        else:
            assert content(copy_of(old)) == before, site
        assert_migrated(old)


def sqlite_schema(path: Path) -> Rows:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT sql FROM sqlite_master").fetchall()
    finally:
        connection.close()


def test_a_disk_without_room_for_it_leaves_the_old_journal(old: Path) -> None:
    before = content(old)
    for site in ("write */journal.schema?.sqlite", "commit */journal.sqlite"):
        assert open_in_a_process(old, **{VARIABLE: f"full@before {site}"}) == 1
        assert content(old) == before
    assert_migrated(old)


def test_processes_that_open_it_at_once_upgrade_it_once(old: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", _OPEN, old]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert_migrated(old)


def test_a_process_of_the_first_schema_killed_before_its_number_left_a_journal(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.sqlite"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(_SCHEMA_1)
    connection.close()
    with open_journal(path) as journal:
        journal.record(KEYS["a"], "operator", "softmax", "pass", {})
        assert journal.read_setting("schema") == "3"


@pytest.mark.parametrize("schema", ["2", "4", "99", "2.0", "", "x", "-1"])
def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path, schema: str) -> None:
    path = tmp_path / "journal.sqlite"
    with open_journal(path) as journal:
        journal.write_setting("schema", schema)
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"has schema .*; this tapml reads schema 3 .*newer one"):
        open_journal(path)
    assert path.read_bytes() == before


def test_a_reader_asks_for_a_resume_before_it_reads_an_older_journal(old: Path) -> None:
    before = content(old)
    with pytest.raises(InputError, match=r"has schema \d, expected 3; resume the work"):
        open_journal(old, readonly=True)
    assert content(old) == before


def test_a_result_made_after_the_upgrade_is_the_newest(old: Path) -> None:
    with open_journal(old) as journal:
        journal.record(KEYS["c"], "operator", "add", "fail", {})
        assert [each.subject for each in journal.results()] == ["softmax", "softmax", "add", "add"]
        latest = journal.latest("operator", "add")
    assert latest is not None
    assert latest.status == "fail"


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("CREATE TABLE photos (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match="is not a journal: it has the tables photos"):
        open_journal(path)
    assert path.read_bytes() == before
