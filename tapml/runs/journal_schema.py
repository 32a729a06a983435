"""The tables of a journal, and upgrades from older schemas."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Final

from tapml.durable.files import replace_file
from tapml.durable.transactions import transaction
from tapml_targets.errors import InputError

SCHEMA_VERSION: Final = 3

_TABLES: Final = (
    "CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE event (id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL,"
    " kind TEXT NOT NULL, data TEXT NOT NULL)",
)
# Results are never replaced: all attempts at a subject are its history.
_RESULTS: Final = (
    "CREATE TABLE result (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL,"
    " parts TEXT NOT NULL, time REAL NOT NULL, stage TEXT NOT NULL, subject TEXT NOT NULL,"
    " status TEXT NOT NULL, data TEXT NOT NULL)",
    "CREATE INDEX result_of_key ON result (key, id)",
    "CREATE INDEX result_of_subject ON result (stage, subject, id)",
)
_UPGRADES: Final = {
    # Schema 1 had one result per key, and only the hash of the key.
    1: (
        "ALTER TABLE session RENAME TO setting",
        *_RESULTS,
        "INSERT INTO result (key, parts, time, stage, subject, status, data)"
        " SELECT key, '{}', time, stage, subject, status, data FROM verdict ORDER BY time, rowid",
        "DROP TABLE verdict",
    ),
    2: (
        "ALTER TABLE session RENAME TO setting",
        "ALTER TABLE verdict RENAME TO result",
        "DROP INDEX verdict_of_key",
        "DROP INDEX verdict_of_subject",
        *_RESULTS[1:],
    ),
}
"""Statements that upgrade a journal, by its schema."""
UPGRADED: Final = "migrated"
"""Kind of the event that an upgrade writes; the next run of the folder reports it."""
_REPORT: Final = "INSERT INTO event (time, kind, data) VALUES (?, ?, ?)"
_SET: Final = "INSERT OR REPLACE INTO setting VALUES ('schema', ?)"


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables in a new file, or upgrade an older journal to this schema.

    An older journal is first copied to ``<name>.schema1.sqlite`` beside it. The upgrade is atomic,
    even if the process is killed.

    Raises
    ------
    InputError
        If the file has other tables, or a newer schema.
    sqlite3.DatabaseError
        If it cannot be read or written.
    """
    found = schema_of(connection, path)
    # After the check, so that a file that is not a journal stays unchanged.
    connection.execute("PRAGMA journal_mode=WAL")
    if found == SCHEMA_VERSION:
        return
    with transaction(connection):
        # Another process may have upgraded it in the meantime.
        found = schema_of(connection, path)
        if found is None:
            for statement in (*_TABLES, *_RESULTS):
                connection.execute(statement)
        elif found < SCHEMA_VERSION:
            data = {"from": found, "to": SCHEMA_VERSION, "copy": _copy(path, found).name}
            for statement in _UPGRADES[found]:
                connection.execute(statement)
            connection.execute(_REPORT, (time.time(), UPGRADED, json.dumps(data)))
        connection.execute(_SET, (str(SCHEMA_VERSION),))


def schema_of(connection: sqlite3.Connection, path: Path) -> int | None:
    """The schema of a journal; None for an empty file. Raises as :func:`prepare` does."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if not tables:
        return None
    old = {"session", "event", "verdict"} <= tables
    if not old and not {"setting", "event", "result"} <= tables:
        raise InputError(
            f"{path} is not a journal: it has the tables {', '.join(sorted(tables))}; name another "
            "folder"
        )
    query = f"SELECT value FROM {'session' if old else 'setting'} WHERE name = 'schema'"  # noqa: S608
    row = connection.execute(query).fetchone()
    # Without a number: a process that wrote schema 1 was killed before it stored it.
    text = "1" if row is None else str(row[0])
    if text in map(str, range(1, SCHEMA_VERSION) if old else (SCHEMA_VERSION,)):
        return int(text)
    raise InputError(
        f"{path} has schema {text}; this tapml reads schema {SCHEMA_VERSION} and older ones. "
        "Open it with the tapml that wrote it, or a newer one, or choose another folder"
    )


def _copy(path: Path, schema: int) -> Path:
    """Copy the file atomically; the caller's transaction keeps other writers out."""
    kept = path.with_name(f"{path.stem}.schema{schema}{path.suffix}")
    with replace_file(kept) as partial:
        # The leftover of a killed copy may not be a database.
        partial.unlink(missing_ok=True)
        source, copy = sqlite3.connect(path), sqlite3.connect(partial)
        try:
            source.backup(copy)
            # A single file, without a WAL beside it.
            copy.execute("PRAGMA journal_mode=DELETE")
        finally:
            copy.close()
            source.close()
    return kept
