"""The journal of a run folder: every step and every result, appended as it happens.

It is an SQLite file in WAL mode with one transaction per row. Results are synced before the call
returns, so a crash or power failure loses at most the current step. A result is stored under a key
of everything it depends on; a resumed run skips a step if its key is in the journal. Rows are never
replaced: older results are the history.

A malformed row, because of an edit or a disk error, counts as missing: its step runs again, and the
run reports the row (:attr:`Journal.passed_over`).
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

import msgspec

from tapml.durable.files import sync_folder
from tapml.durable.transactions import transaction
from tapml.runs.journal_schema import SCHEMA_VERSION, UPGRADED, prepare, schema_of
from tapml.runs.kind import RunKind
from tapml.runs.result_key import ResultKey
from tapml_targets.errors import InputError, SetupError

JOURNAL: Final = "journal.sqlite"
"""The journal in a run folder."""
FORMAT: Final = "format"
_BUSY_SECONDS: Final = 30.0
_LARGEST_ROW: Final = 64 << 20
_RESULT: Final = "SELECT id, key, stage, subject, status, data, time, parts FROM result "


class _Upgrade(msgspec.Struct, rename={"old": "from", "new": "to"}):
    old: int
    new: int
    copy: str


class _PassedOver(msgspec.Struct):
    rows: list[str]


PASSED_OVER: Final = "passed over"
"""Kind of the event that lists the malformed rows a run has skipped."""
_EVENTS: Final = {UPGRADED: _Upgrade, PASSED_OVER: _PassedOver}


@dataclass(frozen=True)
class Result:
    """One result in the journal.

    Attributes
    ----------
    key
        Hash of everything the result depends on.
    parts
        The parts of the key (:class:`~tapml.runs.result_key.ResultKey`); empty for a result of the
        first schema, which kept only the hash.
    stage
        The step of the work.
    subject
        The object of the step, such as an operator.
    status
        One of :attr:`RunKind.statuses <tapml.runs.kind.RunKind.statuses>`.
    data
        JSON data.
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
    """A journal, for use by one thread.

    Parameters
    ----------
    path
        Its file.
    kind
        The kind of work.
    readonly
        Only read it, perhaps while another process writes it.

    Attributes
    ----------
    passed_over
        Malformed rows that were skipped, one sentence each.

    Raises
    ------
    InputError
        If the file is not a journal, belongs to another kind of work, or has a newer schema; with
        `readonly`, also if it has an older one.
    SetupError
        If the file cannot be written.
    """

    def __init__(self, path: Path, kind: RunKind, *, readonly: bool = False) -> None:
        self.path = path
        self.kind = kind
        self.passed_over: dict[str, None] = {}
        self._events = {**_EVENTS, **kind.events}
        made = not path.exists()
        try:
            self._connection = self._open_to_read() if readonly else self._open()
            try:
                self._check_kind()
                if made:
                    sync_folder(path.parent)
            except BaseException:
                self._connection.close()
                raise
        except (sqlite3.OperationalError, OSError) as error:
            raise SetupError(
                f"cannot {'read' if readonly else 'write'} the journal {path}: {error}; free some "
                "space or fix the permissions, then run it again"
            ) from error
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
                raise InputError(f"{path} is not a journal: {error}; {kind.restart}") from error
            raise self._damage(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def read_setting(self, name: str) -> str | None:
        """The value of a setting, or None."""
        rows = self._rows("SELECT value FROM setting WHERE name = ?", (name,))
        return next((str(value) for (value,) in rows), None)

    def write_setting(self, name: str, value: str) -> None:
        """Store a setting, unless it has this value already."""
        if self.read_setting(name) == value:
            return
        self._execute("INSERT OR REPLACE INTO setting VALUES (?, ?)", (name, value), synced=True)

    def append(self, kind: str, **data: Any) -> None:
        """Append an event; `data` is JSON data."""
        self._execute(
            "INSERT INTO event (time, kind, data) VALUES (?, ?, ?)",
            (time.time(), kind, json.dumps(data)),
            synced=False,
        )

    def events(self, kind: str | None = None) -> Iterator[tuple[float, str, dict[str, Any]]]:
        """Events in chronological order, as (time, kind, data)."""
        query = "SELECT id, time, kind, data FROM event"
        parameters: tuple[str, ...] = ()
        if kind is not None:
            query += " WHERE kind = ?"
            parameters = (kind,)
        for row, moment, name, text in self._rows(query + " ORDER BY id", parameters):
            try:
                found = _number(moment), str(name), _object(text, self._events.get(str(name)))
            except (ValueError, RecursionError) as error:
                self._pass_over(f"event {row} ({name!r})", error)
                continue
            yield found

    def record(
        self, key: ResultKey, stage: str, subject: str, status: str, data: Mapping[str, Any]
    ) -> None:
        """Store a result. It supersedes older results under the same key, which stay."""
        self._execute(
            "INSERT INTO result (key, parts, time, stage, subject, status, data)"
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

    def result(self, key: ResultKey) -> Result | None:
        """The newest result under `key`; None if there is none or it is malformed."""
        return self._one("WHERE key = ? ORDER BY id DESC LIMIT 1", (key.hash,))

    def latest(self, stage: str, subject: str) -> Result | None:
        """The newest result of a subject at a stage, under any key."""
        return self._one(
            "WHERE stage = ? AND subject = ? ORDER BY id DESC LIMIT 1", (stage, subject)
        )

    def results(self, stage: str | None = None, subject: str | None = None) -> list[Result]:
        """All results, or those of one stage or subject, oldest first."""
        given = {"stage": stage, "subject": subject}
        named = {name: value for name, value in given.items() if value is not None}
        where = " AND ".join(f"{name} = ?" for name in named) or "TRUE"
        rows = self._rows(f"{_RESULT}WHERE {where} ORDER BY id", tuple(named.values()))
        found = (self._result(row) for row in rows)
        return [each for each in found if each is not None]

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            # Bound the size of a row before it is read.
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_ROW)
            prepare(connection, self.path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _open_to_read(self) -> sqlite3.Connection:
        """Open the file read-only, without lock files if they cannot be created."""
        for mode in ("mode=ro", "immutable=1"):
            uri = f"file:{quote(str(self.path.resolve()))}?{mode}"
            connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
            try:
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_ROW)
                found = schema_of(connection, self.path)
            except sqlite3.OperationalError:
                connection.close()
                if mode == "immutable=1":
                    raise
                continue
            except BaseException:
                connection.close()
                raise
            if found == SCHEMA_VERSION:
                return connection
            connection.close()
            raise InputError(
                f"{self.path} has schema {found or 'none'}, expected {SCHEMA_VERSION}; resume the "
                "work in its folder first, which upgrades it"
            )
        raise AssertionError("unreachable")

    def _check_kind(self) -> None:
        found = self.read_setting(FORMAT)
        if found not in (None, self.kind.format):
            raise InputError(
                f"{self.path} has format {str(found)[:80]!r}, expected {self.kind.format!r}; name "
                "another folder"
            )

    def _one(self, where: str, parameters: tuple[object, ...]) -> Result | None:
        # Do not fall back from a malformed result to an older one, which may contradict it.
        return next((self._result(row) for row in self._rows(_RESULT + where, parameters)), None)

    def _rows(self, query: str, parameters: tuple[object, ...]) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query, parameters).fetchall()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise self._damage(error) from error

    def _result(self, row: tuple[Any, ...]) -> Result | None:
        number, key, stage, subject, status, text, moment, parts = row
        try:
            if status not in self.kind.statuses:
                expected = ", ".join(self.kind.statuses)
                raise ValueError(f"status: expected one of {expected}, got {status!r:.40}")
            return Result(
                str(key),
                str(stage),
                str(subject),
                str(status),
                _object(text, self.kind.results.get(str(stage))),
                _number(moment),
                _object(parts, dict[str, str]),
            )
        except (ValueError, RecursionError) as error:
            self._pass_over(f"{stage} result {number} ({subject!r})", error)
            return None

    def _pass_over(self, row: str, fault: Exception) -> None:
        text = f"{self.path}: {row} is malformed ({fault}) and counts as missing"
        self.passed_over["".join(each if each.isprintable() else "?" for each in text)] = None

    def _damage(self, error: Exception) -> InputError:
        return InputError(f"the journal {self.path} is damaged ({error}); {self.kind.restart}")

    def _execute(self, statement: str, parameters: tuple[object, ...], *, synced: bool) -> None:
        # A sync takes 1 to 5 ms, 100 times as long as the row itself, but a result takes 100 ms or
        # more to make. A sync covers all earlier rows, so a power failure can lose events since
        # the last result, but no result.
        level = "FULL" if synced else "NORMAL"
        try:
            self._connection.execute(f"PRAGMA synchronous={level}")
            with transaction(self._connection):
                self._connection.execute(statement, parameters)
        except (sqlite3.OperationalError, sqlite3.DataError) as error:
            raise SetupError(
                f"cannot write the journal {self.path}: {error}. Earlier results are kept; "
                "free some space or fix the permissions, then resume."
            ) from error


def _object(text: object, shape: Any) -> dict[str, Any]:
    """The JSON object in a row, checked against its type."""
    if not isinstance(text, str | bytes):
        raise ValueError(f"expected a JSON object, got {text!r:.40}")
    # Not msgspec's reader, which refuses NaN and Infinity.
    data = json.loads(text)
    msgspec.convert(data, dict[str, Any])
    if shape is not None:
        msgspec.convert(data, shape)
    return dict(data)


def _number(moment: object) -> float:
    return msgspec.convert(moment, float)
