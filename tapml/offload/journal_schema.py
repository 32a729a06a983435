"""The tables of a journal, and how an older journal becomes one of this schema."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Final

from tapml.durable.files import replace_file
from tapml.durable.transactions import transaction
from tapml_targets.errors import InputError

SCHEMA_VERSION: Final = 2

_TABLES: Final = (
    "CREATE TABLE session (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE event (id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL,"
    " kind TEXT NOT NULL, data TEXT NOT NULL)",
)
# Verdicts are kept, not replaced: what was tried is the history of an operator.
_VERDICTS: Final = (
    "CREATE TABLE verdict (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL,"
    " parts TEXT NOT NULL, time REAL NOT NULL, stage TEXT NOT NULL, subject TEXT NOT NULL,"
    " status TEXT NOT NULL, data TEXT NOT NULL)",
    "CREATE INDEX verdict_of_key ON verdict (key, id)",
    "CREATE INDEX verdict_of_subject ON verdict (stage, subject, id)",
)
# Schema 1 kept one verdict a key, and of what it depended on the hash alone.
_FROM_1: Final = (
    "ALTER TABLE verdict RENAME TO verdict_1",
    *_VERDICTS,
    "INSERT INTO verdict (key, parts, time, stage, subject, status, data)"
    " SELECT key, '{}', time, stage, subject, status, data FROM verdict_1 ORDER BY time, rowid",
    "DROP TABLE verdict_1",
)
MIGRATED: Final = "migrated"
"""Kind of the event that a migration leaves: the next run of the session tells of it."""
_TELL: Final = "INSERT INTO event (time, kind, data) VALUES (?, ?, ?)"
_SET: Final = "INSERT OR REPLACE INTO session VALUES ('schema', ?)"


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make a new file a journal, and an older journal one of this schema.

    An older one is copied first, to ``<name>.schema1.sqlite`` beside it. Killed at any moment, the
    file is of the one schema or of the other.

    Raises
    ------
    InputError
        If the file holds other tables, or was written by a newer schema.
    sqlite3.DatabaseError
        If it cannot be read or written.
    """
    found = _found(connection, path)
    # Only now: what is no journal is left as it is.
    connection.execute("PRAGMA journal_mode=WAL")
    if found == SCHEMA_VERSION:
        return
    with transaction(connection):
        # Another process may have been here in between.
        found = _found(connection, path)
        if found is None:
            for statement in (*_TABLES, *_VERDICTS):
                connection.execute(statement)
        elif found == 1:
            data = {"from": found, "to": SCHEMA_VERSION, "copy": _copy(path).name}
            for statement in _FROM_1:
                connection.execute(statement)
            connection.execute(_TELL, (time.time(), MIGRATED, json.dumps(data)))
        connection.execute(_SET, (str(SCHEMA_VERSION),))


def _found(connection: sqlite3.Connection, path: Path) -> int | None:
    """The schema of what is in the file; None for nothing."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if not tables:
        return None
    if not {"session", "event", "verdict"} <= tables:
        raise InputError(
            f"{path} is not a journal: it holds {', '.join(sorted(tables))}; name another folder"
        )
    row = connection.execute("SELECT value FROM session WHERE name = 'schema'").fetchone()
    # A process of the first schema was killed between its tables and their number.
    text = "1" if row is None else str(row[0])
    if text.isdecimal() and 1 <= int(text) <= SCHEMA_VERSION:
        return int(text)
    raise InputError(
        f"{path} has schema {text}; this tapml reads schema {SCHEMA_VERSION} and older ones. "
        "Open it with the tapml that wrote it, or a newer one, or start a new session in another "
        "folder (--session)"
    )


def _copy(path: Path) -> Path:
    """Keep the file as it is, whole or not at all, while a transaction holds it still."""
    kept = path.with_name(f"{path.stem}.schema1{path.suffix}")
    with replace_file(kept) as partial:
        # What a killed copy left is no database, or another one.
        partial.unlink(missing_ok=True)
        source, copy = sqlite3.connect(path), sqlite3.connect(partial)
        try:
            source.backup(copy)
            # One plain file, to be looked at by any tapml that reads its schema.
            copy.execute("PRAGMA journal_mode=DELETE")
        finally:
            copy.close()
            source.close()
    return kept
