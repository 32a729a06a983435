"""The journal: every step and every verdict of a session, appended as it happens.

SQLite in WAL mode, one transaction a row, a verdict on the disk before the call returns: a session
killed at any moment, or cut off from power, loses at most the step in hand. A verdict is stored
under a key that names everything it depends on; a resumed session asks for the key it would write
and skips the step when the key is there. Nothing is ever replaced: earlier verdicts are the
history.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tapml.durable.files import sync_folder
from tapml.durable.transactions import transaction
from tapml.offload.journal_schema import prepare
from tapml.offload.verdict_key import VerdictKey
from tapml_targets.errors import InputError, SetupError

_BUSY_SECONDS: Final = 30.0
_ANEW: Final = "begin anew in another folder (--session), or here with --restart"
_VERDICT: Final = "SELECT key, stage, subject, status, data, time, parts FROM verdict "


@dataclass(frozen=True)
class JournaledVerdict:
    """One verdict as the journal holds it.

    Attributes
    ----------
    key
        Hash of everything the verdict depends on.
    parts
        The same by name (:class:`~tapml.offload.verdict_key.VerdictKey`); empty for a verdict of
        the first schema, which kept the hash alone.
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
    parts: dict[str, str]


class Journal:
    """The journal of one session folder. Used from one thread.

    Raises
    ------
    InputError
        If the file is not a journal, or was written by a newer schema.
    SetupError
        If the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        made = not path.exists()
        try:
            self._connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
            try:
                prepare(self._connection, path)
                if made:
                    sync_folder(path.parent)
            except BaseException:
                self._connection.close()
                raise
        except (sqlite3.OperationalError, OSError) as error:
            raise SetupError(
                f"cannot write the journal {path}: {error}; free some space or fix the "
                "permissions, then run it again"
            ) from error
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
                raise InputError(f"{path} is not a journal: {error}; {_ANEW}") from error
            raise self._damage(error) from error

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
        """Store a fact of the session; what is there already is not written again."""
        if self.read_setting(name) == value:
            return
        self._execute("INSERT OR REPLACE INTO session VALUES (?, ?)", (name, value), synced=True)

    def append(self, kind: str, **data: Any) -> None:
        """Append an event; `data` is JSON data."""
        self._execute(
            "INSERT INTO event (time, kind, data) VALUES (?, ?, ?)",
            (time.time(), kind, json.dumps(data)),
            synced=False,
        )

    def events(self, kind: str | None = None) -> Iterator[tuple[float, str, dict[str, Any]]]:
        """Events in the order they happened, as (time, kind, data)."""
        query = "SELECT time, kind, data FROM event"
        parameters: tuple[str, ...] = ()
        if kind is not None:
            query += " WHERE kind = ?"
            parameters = (kind,)
        for moment, name, data in self._rows(query + " ORDER BY id", parameters):
            yield float(moment), str(name), self._object(data)

    def record(
        self, key: VerdictKey, stage: str, subject: str, status: str, data: Mapping[str, Any]
    ) -> None:
        """Store a verdict under its key. Earlier ones of the same key stay, and count no more."""
        self._execute(
            "INSERT INTO verdict (key, parts, time, stage, subject, status, data)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                key.hash,
                json.dumps(dict(key.parts)),
                time.time(),
                stage,
                subject,
                status,
                json.dumps(dict(data)),
            ),
            synced=True,
        )

    def verdict(self, key: VerdictKey) -> JournaledVerdict | None:
        """The newest verdict stored under `key`, if there is one."""
        return self._one("WHERE key = ? ORDER BY id DESC LIMIT 1", (key.hash,))

    def latest(self, stage: str, subject: str) -> JournaledVerdict | None:
        """The newest verdict of a subject at a stage, whatever its key."""
        return self._one(
            "WHERE stage = ? AND subject = ? ORDER BY id DESC LIMIT 1", (stage, subject)
        )

    def verdicts(
        self, stage: str | None = None, subject: str | None = None
    ) -> list[JournaledVerdict]:
        """Every verdict ever made, of one stage or subject or of all, oldest first."""
        given = {"stage": stage, "subject": subject}
        named = {name: value for name, value in given.items() if value is not None}
        where = " AND ".join(f"{name} = ?" for name in named) or "TRUE"
        rows = self._rows(f"{_VERDICT}WHERE {where} ORDER BY id", tuple(named.values()))
        return [self._verdict(row) for row in rows]

    def _one(self, where: str, parameters: tuple[object, ...]) -> JournaledVerdict | None:
        return next((self._verdict(row) for row in self._rows(_VERDICT + where, parameters)), None)

    def _rows(self, query: str, parameters: tuple[object, ...]) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query, parameters).fetchall()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise self._damage(error) from error

    def _verdict(self, row: tuple[Any, ...]) -> JournaledVerdict:
        key, stage, subject, status, data, moment, parts = row
        return JournaledVerdict(
            key, stage, subject, status, self._object(data), moment, self._object(parts)
        )

    def _object(self, text: str | bytes) -> dict[str, Any]:
        """A JSON object of a row; what else stands there tapml has not written."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._damage(error) from error
        if not isinstance(found, dict):
            raise self._damage(TypeError(f"expected a JSON object, got {str(text)[:40]!r}"))
        return found

    def _damage(self, error: Exception) -> InputError:
        return InputError(f"the journal {self._path} is damaged ({error}); {_ANEW}")

    def _execute(self, statement: str, parameters: tuple[object, ...], *, synced: bool) -> None:
        # Waiting for the disk takes 1 to 5 ms: little beside the 100 ms and more that a verdict
        # takes to make, and 100 times what a row takes without. Syncing a row syncs those before
        # it: a power failure costs the events since the last verdict, never a verdict.
        level = "FULL" if synced else "NORMAL"
        try:
            self._connection.execute(f"PRAGMA synchronous={level}")
            with transaction(self._connection):
                self._connection.execute(statement, parameters)
        except sqlite3.OperationalError as error:
            raise SetupError(
                f"cannot write the journal {self._path}: {error}. What was journaled is kept; "
                "free some space or fix the permissions, then resume."
            ) from error
