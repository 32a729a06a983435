"""Files of a session that something else has damaged: made again, or named."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.offload.commands import run_here
from tests.offload.sessions import FinishedSession, states


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def turn_bits(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes(255 - byte for byte in content[100:]))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("finished/library.msgpack", truncate),
        ("suite/index.sqlite", turn_bits),
        ("report.json", Path.unlink),
        ("oracle.sqlite", Path.unlink),
    ],
    ids=["finished plan", "suite", "report", "expectations"],
)
def test_what_can_be_made_again_is(
    finished: FinishedSession, tmp_path: Path, name: str, damage: object
) -> None:
    session = finished.copy(tmp_path / "session")
    assert callable(damage)
    damage(session / name)
    ended = run_here("offload", "--session", session, cache=finished.cache)
    assert ended.exit_code == 0, ended.errors
    assert set(states(session).values()) == {"moved"}
    assert (session / name).is_file()
    ended = run_here("run", session, "--tokens", "1 2", "--max-new-tokens", "1",
                     cache=finished.cache)  # fmt: skip
    assert ended.exit_code == 0, ended.errors


def test_rows_that_somebody_edited_are_made_again_and_named(
    finished: FinishedSession, tmp_path: Path
) -> None:
    session = finished.copy(tmp_path / "session")
    journal = session / "journal.sqlite"
    (first, second, *_), (last, *_) = (
        [row for (row,) in query(journal, f"SELECT id FROM result WHERE stage = '{stage}'")]
        for stage in ("operator", "final")
    )
    edits = {first: '{"times": {"entries": 7}}', second: "[]", last: '{"headline": 1}'}
    for row, data in edits.items():
        query(journal, "UPDATE result SET data = ? WHERE id = ?", data, row)
    query(journal, "UPDATE result SET data = '{\"moved_bytes\": {\"decode\": 7}}' "
          "WHERE stage = 'model'")  # fmt: skip
    query(journal, "UPDATE setting SET value = 'my laptop' WHERE name = 'device'")
    query(journal, "INSERT INTO event (time, kind, data) VALUES (1.0, 'failed', '{}')")
    ended = run_here("offload", "--session", session, cache=finished.cache)
    assert ended.exit_code == 0, ended.errors
    assert set(states(session).values()) == {"moved"}
    for row in edits:
        assert f"result {row} (" in ended.errors
    assert "is malformed (Expected `object`, got `int` - at `$.times.entries`)" in ended.errors
    assert "resumed:" in ended.errors
    again = run_here("offload", "--session", session, cache=finished.cache)
    assert again.exit_code == 0, again.errors
    assert "made again" not in again.errors
    assert "is malformed" not in again.errors, "it was told"


def test_a_session_with_an_older_journal_is_resumed(
    finished: FinishedSession, tmp_path: Path
) -> None:
    session = finished.copy(tmp_path / "session")
    journal = session / "journal.sqlite"
    for statement in (
        "ALTER TABLE setting RENAME TO session",
        "ALTER TABLE result RENAME TO verdict",
        "DROP INDEX result_of_key",
        "DROP INDEX result_of_subject",
        "CREATE INDEX verdict_of_key ON verdict (key, id)",
        "CREATE INDEX verdict_of_subject ON verdict (stage, subject, id)",
        "UPDATE session SET value = '2' WHERE name = 'schema'",
    ):
        query(journal, statement)
    refused = run_here("kernel", "list", session, cache=finished.cache)
    assert refused.exit_code == 2
    (line,) = refused.error_lines
    assert "has schema 2, expected 3" in line
    ended = run_here("offload", "--session", session, cache=finished.cache)
    assert ended.exit_code == 0, ended.errors
    assert "the journal was upgraded from schema 2 to 3" in ended.errors
    assert f"resumed: {len(states(session))} verdicts reused\n" in ended.errors
    assert (session / "journal.schema2.sqlite").is_file()
    assert run_here("kernel", "list", session, cache=finished.cache).exit_code == 0


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("settings", "{", "start again in another folder (--session), or here with --restart"),
        ("settings", '{"model": 7}', "start again"),
        ("policy", "[1]", "name one with --policy"),
        ("kernels", "7", "name them with --kernels"),
    ],
)
def test_a_setting_that_cannot_be_read_is_named_with_what_to_do(
    finished: FinishedSession, tmp_path: Path, name: str, value: str, words: str
) -> None:
    session = finished.copy(tmp_path / "session")
    query(session / "journal.sqlite", "INSERT OR REPLACE INTO setting VALUES (?, ?)", name, value)
    ended = run_here("offload", "--session", session, "--quiet", cache=finished.cache)
    assert ended.exit_code == 2
    (line,) = ended.error_lines
    assert f"setting '{name}' in {session / 'journal.sqlite'}" in line
    assert words in line


def query(journal: Path, statement: str, *values: object) -> list[tuple[object, ...]]:
    """What somebody does with another tool."""
    with sqlite3.connect(journal) as connection:
        found = connection.execute(statement, values).fetchall()
    connection.close()
    return found


@pytest.mark.parametrize(
    ("name", "words"),
    [("journal.sqlite", "start again in another folder"), ("oracle.sqlite", "delete it")],
    ids=["journal", "expectations"],
)
def test_what_cannot_is_named(
    finished: FinishedSession, tmp_path: Path, name: str, words: str
) -> None:
    session = finished.copy(tmp_path / "session")
    turn_bits(session / name)
    ended = run_here("offload", "--session", session, "--quiet", cache=finished.cache)
    assert ended.exit_code == 2
    (line,) = ended.error_lines
    assert str(session / name) in line
    assert words in line
