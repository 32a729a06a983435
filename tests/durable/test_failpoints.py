"""Failpoints do what the environment asks, and cost and do nothing where it asks for nothing."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tapml.durable.files import replace_folder, write_bytes
from tapml.durable.transactions import transaction
from tapml_targets import failpoints as boundaries
from tapml_targets.errors import InputError, SetupError
from tapml_targets.failpoints import VARIABLE, failpoint

_WRITES = """
import sys
from pathlib import Path
from tapml.durable.files import write_text
for text in ("one", "two", "three"):
    write_text(Path(sys.argv[1]), text)
"""


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Sets the variable; it is read again, and forgotten after the test."""
    boundaries.planned_fault.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    boundaries.planned_fault.cache_clear()


def test_nothing_happens_where_nothing_is_asked_for(ask: pytest.MonkeyPatch) -> None:
    ask.delenv(VARIABLE, raising=False)
    first, second = failpoint("write", "a"), failpoint("rename", Path("b"))
    assert first is second, "no object is made"
    with first, second:
        pass


def test_a_record_names_every_hit_before_and_after(ask: pytest.MonkeyPatch, tmp_path: Path) -> None:
    record, path = tmp_path / "record", tmp_path / "folder" / "file"
    path.parent.mkdir()
    ask.setenv(VARIABLE, f"record={record}")
    write_bytes(path, b"content")
    lines = record.read_text().splitlines()
    order = [("write", path), ("fsync", path), ("rename", path), ("fsync", path.parent)]
    assert lines == [
        f"{moment} {kind} {place}" for kind, place in order for moment in ("before", "after")
    ]


@pytest.mark.parametrize(
    ("site", "content"),
    [
        ("before write", "one"),
        ("after write", "one"),
        ("before rename", "one"),
        ("after rename", "two"),
    ],
)
def test_a_process_is_killed_at_the_second_hit_and_files_are_whole(
    tmp_path: Path, site: str, content: str
) -> None:
    path = tmp_path / "file"
    done = subprocess.run(
        [sys.executable, "-c", _WRITES, path],
        env={**os.environ, VARIABLE: f"kill@{site} */file#2"},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == content


def test_a_process_that_stops_itself_goes_on_from_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    environment = {**os.environ, VARIABLE: "stop@after rename */file"}
    with subprocess.Popen([sys.executable, "-c", _WRITES, path], env=environment) as process:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert path.read_text() == "one"
        process.send_signal(signal.SIGCONT)
    assert process.returncode == 0
    assert path.read_text() == "three"


def test_a_full_disk_stays_full(ask: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "file"
    ask.setenv(VARIABLE, f"full@before rename {path}#2")
    write_bytes(path, b"one")
    for text in (b"two", b"three"):
        with pytest.raises(SetupError, match=r"No space left on device; free some space"):
            write_bytes(path, text)
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]
    path.unlink()


def test_a_full_disk_undoes_a_transaction_in_sqlites_words(
    ask: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "file.sqlite"
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("CREATE TABLE t (x)")
        ask.setenv(VARIABLE, f"full@before commit {path.resolve()}#2")
        with transaction(connection):
            connection.execute("INSERT INTO t VALUES (1)")
        with (
            pytest.raises(sqlite3.OperationalError, match="database or disk is full"),
            transaction(connection),
        ):
            connection.execute("INSERT INTO t VALUES (2)")
        assert connection.execute("SELECT x FROM t").fetchall() == [(1,)]
    finally:
        connection.close()


def test_what_the_block_raises_undoes_a_transaction() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("CREATE TABLE t (x)")
    with pytest.raises(OSError, match="own"), transaction(connection):
        connection.execute("INSERT INTO t VALUES (1)")
        raise OSError("the block's own")
    assert connection.execute("SELECT x FROM t").fetchall() == []
    connection.close()


def test_a_folder_takes_its_place_as_a_whole_or_not_at_all(
    ask: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, record = tmp_path / "folder", tmp_path / "record"
    for text in ("old", "new"):
        with replace_folder(folder) as partial:
            (partial / text).write_text(text)
    assert [path.name for path in folder.iterdir()] == ["new"]
    ask.setenv(VARIABLE, f"full@before rename {folder}")
    boundaries.planned_fault.cache_clear()
    with pytest.raises(SetupError, match="free some space"), replace_folder(folder) as partial:
        (partial / "never").write_text("")
    assert [path.name for path in folder.iterdir()] == ["new"], "what was there stays"
    ask.setenv(VARIABLE, f"record={record}")
    boundaries.planned_fault.cache_clear()
    with replace_folder(folder) as partial:
        (partial / "file").write_text("content")
    kinds = Counter(line.split()[1] for line in record.read_text().splitlines())
    assert kinds == {"write": 2, "fsync": 6, "rename": 2, "remove": 2}
    record.unlink()
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(
    "text",
    ["kill", "kill@", "kill@before", "kill@before rename", "kill@during rename x",
     "x@before write x", "kill@before open x", "full@before rename #2", "kill@before rename x#0"],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_what_can(ask: pytest.MonkeyPatch, text: str) -> None:
    ask.setenv(VARIABLE, text)
    with pytest.raises(InputError, match=rf"{VARIABLE} is .*expected record=FILE, or kill@"):
        failpoint("write", "a")
