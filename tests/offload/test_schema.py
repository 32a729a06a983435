"""A journal of the first schema opens, whatever ends the process that migrates it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tapml.offload.changes import UNKNOWN, what_changed
from tapml.offload.journal import Journal
from tapml.offload.session import _since_last_run
from tapml.offload.verdict_key import VerdictKey, hash_parts
from tapml_targets.boundaries import VARIABLE
from tapml_targets.errors import InputError

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
_OPEN = "import sys; from pathlib import Path; from tapml.offload.journal import Journal; \
Journal(Path(sys.argv[1])).close()"

KEYS = {name: VerdictKey(hash_parts(kernel=name), {"kernel": name}) for name in "abc"}
Rows = list[tuple[Any, ...]]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A journal of schema 1 with settings, events and three verdicts, the newest first."""
    path = tmp_path / "session" / "journal.sqlite"
    path.parent.mkdir()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(_SCHEMA_1)
    connection.execute("INSERT INTO session VALUES ('schema', '1'), ('model', 'tiny')")
    connection.executemany(
        "INSERT INTO event (time, kind, data) VALUES (?, ?, ?)",
        [(float(index), "phase", f'{{"index": {index}}}') for index in range(5)],
    )
    connection.executemany(
        "INSERT INTO verdict VALUES (?, ?, 'operator', ?, ?, ?)",
        [
            (KEYS["b"].hash, 20.0, "softmax", "pass", '{"worst_ratio": 1.5}'),
            (KEYS["a"].hash, 10.0, "softmax", "fail", "{}"),
            (KEYS["c"].hash, 30.0, "add", "pass", "{}"),
        ],
    )
    connection.close()
    return path


def copy_of(path: Path) -> Path:
    return path.with_name("journal.schema1.sqlite")


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
    with Journal(path) as journal:
        assert journal.read_setting("model") == "tiny"
        assert journal.read_setting("schema") == "2"
        assert [data["index"] for _, _, data in journal.events("phase")] == [0, 1, 2, 3, 4]
        verdicts = [(each.subject, each.status, each.time) for each in journal.verdicts()]
        assert verdicts == [
            ("softmax", "fail", 10.0), ("softmax", "pass", 20.0), ("add", "pass", 30.0)
        ]  # fmt: skip
        found = journal.verdict(KEYS["b"])
        assert found is not None
        assert (found.status, found.data, found.parts) == ("pass", {"worst_ratio": 1.5}, {})
        latest = journal.latest("operator", "softmax")
        assert latest == found
        assert what_changed(latest.parts, KEYS["c"]) == (UNKNOWN,)
    assert sorted(each.name for each in path.parent.iterdir()) == [
        "journal.schema1.sqlite", "journal.sqlite"
    ]  # fmt: skip


def test_it_opens_with_all_it_held_and_the_old_file_is_kept(old: Path) -> None:
    before = content(old)
    assert_migrated(old)
    kept = content(copy_of(old))
    assert kept == before
    assert_migrated(old)
    assert content(copy_of(old)) == kept, "once and for all"


def test_the_migration_is_an_event_for_the_next_run_to_tell(old: Path) -> None:
    with Journal(old) as journal:
        (said,) = _since_last_run(journal)
        assert said == (
            f"the journal was migrated from schema 1 to 2; as it was, it lies in {copy_of(old)}"
        )
    with Journal(old) as journal:
        assert _since_last_run(journal) == [said], "also where another command opened it first"
        journal.append("run", process=1)
        assert _since_last_run(journal) == []


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
        if "parts" not in str(sqlite_schema(old)):
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
    for site in ("write */journal.schema1.sqlite", "commit */journal.sqlite"):
        assert open_in_a_process(old, **{VARIABLE: f"full@before {site}"}) == 1
        assert content(old) == before
    assert_migrated(old)


def test_processes_that_open_it_at_once_migrate_it_once(old: Path) -> None:
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
    with Journal(path) as journal:
        journal.record(KEYS["a"], "operator", "softmax", "pass", {})
        assert journal.read_setting("schema") == "2"


@pytest.mark.parametrize("schema", ["3", "99", "2.0", "", "x", "-1"])
def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path, schema: str) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(path) as journal:
        journal.write_setting("schema", schema)
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"has schema .*; this tapml reads schema 2 .*newer one"):
        Journal(path)
    assert path.read_bytes() == before


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("CREATE TABLE photos (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match="is not a journal: it holds photos"):
        Journal(path)
    assert path.read_bytes() == before
