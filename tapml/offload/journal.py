"""The journal: every step and every verdict of a session, appended as it happens.

SQLite in WAL mode, one transaction a row: a session killed at any moment loses at most the step in
hand. A verdict is stored under a key that names everything it depends on; a resumed session asks
for the key it would write and skips the step when the key is there.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tapml_targets.errors import InputError, SetupError

SCHEMA_VERSION: Final = 1

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS session (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS event (
    id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS verdict (
    key TEXT PRIMARY KEY, time REAL NOT NULL, stage TEXT NOT NULL, subject TEXT NOT NULL,
    status TEXT NOT NULL, data TEXT NOT NULL
);
"""


@dataclass(frozen=True)
class JournaledVerdict:
    """One verdict as the journal holds it.

    Attributes
    ----------
    key
        Hash of everything the verdict depends on.
    stage
        ``rooting``, ``operator``, ``model`` or ``final``.
    subject
        The operator, or the model.
    status
        ``pass``, ``degraded``, ``fail`` or ``not run``.
    data
        The numbers, as JSON data.
    time
        Seconds since the epoch.
    """

    key: str
    stage: str
    subject: str
    status: str
    data: dict[str, Any]
    time: float


def verdict_key(**parts: str) -> str:
    """Hash of named parts (kernel, body, tests, policy, compiler, device, ...), hexadecimal."""
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Journal:
    """The journal of one session folder. Used from one thread.

    Raises
    ------
    InputError
        If the file is not a journal, or was written by another version of its schema.
    SetupError
        If the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._connection = sqlite3.connect(path, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.executescript(_SCHEMA)
            found = self.read_setting("schema")
            if found is None:
                self.write_setting("schema", str(SCHEMA_VERSION))
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise SetupError(
                    f"cannot write the journal {path}: {error}; free some space or fix the "
                    "permissions, then run it again"
                ) from error
            raise InputError(f"{path} is not a journal: {error}") from error
        if found not in (None, str(SCHEMA_VERSION)):
            raise InputError(
                f"{path} has schema {found}; this tapml reads schema {SCHEMA_VERSION}. "
                "Open it with the tapml that wrote it, or start a new session."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; what was appended stays."""
        self._connection.close()

    def read_setting(self, name: str) -> str | None:
        """A fact of the session that does not change: model, target, device."""
        rows = self._rows("SELECT value FROM session WHERE name = ?", (name,))
        return next((str(value) for (value,) in rows), None)

    def write_setting(self, name: str, value: str) -> None:
        """Store a fact of the session."""
        self._execute("INSERT OR REPLACE INTO session VALUES (?, ?)", (name, value))

    def append(self, kind: str, **data: Any) -> None:
        """Append an event; `data` is JSON data."""
        self._execute(
            "INSERT INTO event (time, kind, data) VALUES (?, ?, ?)",
            (time.time(), kind, json.dumps(data)),
        )

    def events(self, kind: str | None = None) -> Iterator[tuple[float, str, dict[str, Any]]]:
        """Events in the order they happened, as (time, kind, data)."""
        query = "SELECT time, kind, data FROM event"
        parameters: tuple[str, ...] = ()
        if kind is not None:
            query += " WHERE kind = ?"
            parameters = (kind,)
        for moment, name, data in self._rows(query + " ORDER BY id", parameters):
            yield float(moment), str(name), json.loads(data)

    def record(
        self, key: str, stage: str, subject: str, status: str, data: Mapping[str, Any]
    ) -> None:
        """Store a verdict under its key, in place of an earlier one of the same key."""
        self._execute(
            "INSERT OR REPLACE INTO verdict VALUES (?, ?, ?, ?, ?, ?)",
            (key, time.time(), stage, subject, status, json.dumps(dict(data))),
        )

    def verdict(self, key: str) -> JournaledVerdict | None:
        """The verdict stored under `key`, if there is one."""
        query = "SELECT key, stage, subject, status, data, time FROM verdict WHERE key = ?"
        return next((_verdict(row) for row in self._rows(query, (key,))), None)

    def verdicts(self, stage: str | None = None) -> list[JournaledVerdict]:
        """All verdicts, oldest first; the last one of a subject is the one that counts."""
        query = "SELECT key, stage, subject, status, data, time FROM verdict"
        parameters: tuple[str, ...] = ()
        if stage is not None:
            query += " WHERE stage = ?"
            parameters = (stage,)
        return [_verdict(row) for row in self._rows(query + " ORDER BY time, rowid", parameters)]

    def _rows(self, query: str, parameters: tuple[object, ...]) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._connection.execute(query, parameters)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise InputError(
                f"the journal {self._path} is damaged ({error}); start a new session"
            ) from error

    def _execute(self, statement: str, parameters: tuple[object, ...]) -> None:
        try:
            self._connection.execute(statement, parameters)
        except sqlite3.OperationalError as error:
            raise SetupError(
                f"cannot write the journal {self._path}: {error}. What was journaled is kept; "
                "free some space or fix the permissions, then resume."
            ) from error


def _verdict(row: tuple[Any, ...]) -> JournaledVerdict:
    key, stage, subject, status, data, moment = row
    return JournaledVerdict(key, stage, subject, status, json.loads(data), moment)
