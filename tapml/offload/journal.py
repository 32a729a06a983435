"""The journal: every step and every verdict of a session, appended as it happens.

SQLite in WAL mode, one transaction a row, a verdict on the disk before the call returns: a session
killed at any moment, or cut off from power, loses at most the step in hand. A verdict is stored
under a key that names everything it depends on; a resumed session asks for the key it would write
and skips the step when the key is there. Nothing is ever replaced: earlier verdicts are the
history.

A row that is not as tapml writes it, for somebody edited it or a disk lost it, counts as not there:
its step is taken again, and the run says so (:attr:`Journal.passed_over`).
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
from tapml.offload.row_shapes import fault_of_event, fault_of_parts, fault_of_verdict
from tapml.offload.verdict_key import VerdictKey
from tapml_targets.errors import InputError, SetupError

_BUSY_SECONDS: Final = 30.0
_ANEW: Final = "begin anew in another folder (--session), or here with --restart"
_VERDICT: Final = "SELECT id, key, stage, subject, status, data, time, parts FROM verdict "
_STATUSES: Final = ("pass", "degraded", "fail", "not run")


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

    Attributes
    ----------
    path
        Its file.
    passed_over
        Rows that were read and are not as tapml writes them, a sentence each.

    Raises
    ------
    InputError
        If the file is not a journal, or was written by a newer schema.
    SetupError
        If the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.passed_over: dict[str, None] = {}
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
        query = "SELECT id, time, kind, data FROM event"
        parameters: tuple[str, ...] = ()
        if kind is not None:
            query += " WHERE kind = ?"
            parameters = (kind,)
        for row, moment, name, text in self._rows(query + " ORDER BY id", parameters):
            data, fault = _object(text)
            fault = fault or _time_fault(moment) or fault_of_event(str(name), data)
            if not fault:
                yield float(moment), str(name), data
            else:
                self._pass_over(f"event {row} ({name!r})", fault, "it counts as not told")

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
        """The newest verdict stored under `key`; None where there is none that can be read."""
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
        found = (self._verdict(row) for row in rows)
        return [each for each in found if each is not None]

    def _one(self, where: str, parameters: tuple[object, ...]) -> JournaledVerdict | None:
        # An older one in place of one that cannot be read may say the contrary.
        return next((self._verdict(row) for row in self._rows(_VERDICT + where, parameters)), None)

    def _rows(self, query: str, parameters: tuple[object, ...]) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query, parameters).fetchall()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise self._damage(error) from error

    def _verdict(self, row: tuple[Any, ...]) -> JournaledVerdict | None:
        number, key, stage, subject, status, text, moment, parts_text = row
        data, fault = _object(text)
        parts, other = _object(parts_text)
        fault = fault or other or _time_fault(moment)
        if status not in _STATUSES:
            fault = fault or f"status: expected one of {', '.join(_STATUSES)}, got {status!r:.40}"
        fault = fault or fault_of_verdict(str(stage), data) or fault_of_parts(parts)
        if not fault:
            return JournaledVerdict(
                str(key), str(stage), str(subject), str(status), data, float(moment), parts
            )
        self._pass_over(f"verdict {number} ({stage} {subject!r})", fault, "it counts as not made")
        return None

    def _pass_over(self, row: str, fault: str, so: str) -> None:
        text = f"{self.path}, {row} is not as tapml writes it ({fault}): {so}"
        self.passed_over["".join(each if each.isprintable() else "?" for each in text)] = None

    def _damage(self, error: Exception) -> InputError:
        return InputError(f"the journal {self.path} is damaged ({error}); {_ANEW}")

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
                f"cannot write the journal {self.path}: {error}. What was journaled is kept; "
                "free some space or fix the permissions, then resume."
            ) from error


def _object(text: object) -> tuple[dict[str, Any], str]:
    """The JSON object in a row, or what stands there instead."""
    try:
        found = json.loads(text) if isinstance(text, str | bytes) else text
    except (ValueError, RecursionError) as error:
        return {}, f"no JSON, {error}"
    if not isinstance(found, dict):
        return {}, f"expected a JSON object, got {str(text)[:40]!r}"
    return found, ""


def _time_fault(moment: object) -> str:
    return "" if isinstance(moment, int | float) else f"time: expected a number, got {moment!r:.40}"
