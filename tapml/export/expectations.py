"""Expected results of an exported suite's tests, in one read-only file.

Unlike the oracle's cache they are stored by test and independent of the compiler, so that a machine
without one can use them. They are measured with as many perturbations of the inputs as are required
to blame a target.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from tapml.export.probes import pack_probe, unpack_probe
from tapml.oracles.carved_case import CarvedCase
from tapml.oracles.expectation_store import decode
from tapml.oracles.probes import ProbeCase
from tapml.plan.graph_plan import Operator
from tapml.verdicts.expectation import Expectation
from tapml_targets.errors import CompileError, InputError

EXPECTATIONS: Final = "expectations.sqlite"
_APPLICATION_ID: Final = 0x74617865
_SCHEMA_VERSION: Final = 2
_SCHEMA: Final = """
CREATE TABLE expectation (test TEXT PRIMARY KEY, data BLOB, problem TEXT) WITHOUT ROWID;
CREATE TABLE probe (test TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
"""
_ROWS_PER_TRANSACTION: Final = 64


def write_expectations(
    path: Path,
    rows: Iterable[tuple[str, bytes | None, str | None]],
    probes: Iterable[ProbeCase],
) -> None:
    """Write (test id, encoded expectation, or the reason for its absence) and probes."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        # A new file, renamed with its folder when complete.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        connection.executescript(_SCHEMA)
        connection.execute("BEGIN")
        for count, row in enumerate(rows, 1):
            connection.execute("INSERT INTO expectation VALUES (?, ?, ?)", row)
            if count % _ROWS_PER_TRANSACTION == 0:
                connection.execute("COMMIT")
                connection.execute("BEGIN")
        connection.execute("COMMIT")
        for probe in probes:
            connection.execute("INSERT INTO probe VALUES (?, ?)", (probe.id, pack_probe(probe)))
    finally:
        connection.close()


class ExportedExpectations:
    """Expectations by test, in place of an :class:`tapml.oracles.oracle.Oracle`.

    Parameters
    ----------
    path
        Output of :func:`write_expectations`; may be on read-only media.
    operators
        The suite's operators, by name.

    Raises
    ------
    InputError
        If it is not such a file.
    """

    def __init__(self, path: Path, operators: Mapping[str, Operator]) -> None:
        self._path = path
        self._operators = operators
        if not path.is_file():
            raise InputError(f"there is no {path}: export the suite again")
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        self._connection = sqlite3.connect(uri, uri=True, isolation_level=None)
        try:
            (application,) = self._connection.execute("PRAGMA application_id").fetchone()
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise InputError(f"{path} is damaged ({error}): export the suite again") from error
        if (application, version) != (_APPLICATION_ID, _SCHEMA_VERSION):
            self._connection.close()
            raise InputError(
                f"{path} has no expectations of schema {_SCHEMA_VERSION}: export the suite again"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def probe(self, identifier: str, operator: Operator) -> ProbeCase:
        """A probe of an operator, with its expected result.

        Raises
        ------
        InputError
            If the file has no such probe, or is damaged.
        """
        (data,) = self._row("SELECT data FROM probe WHERE test = ?", identifier, "probe")
        try:
            return unpack_probe(bytes(data), identifier, operator)
        except (ValueError, TypeError, IndexError, AttributeError) as error:
            raise self._damaged(identifier, error) from error

    def expect(self, test: CarvedCase) -> Expectation:
        """The expected result of `test`.

        Raises
        ------
        CompileError
            If the operator has no float64 twin.
        InputError
            If the file does not have the test, or is damaged.
        """
        if isinstance(test, ProbeCase):
            return test.expectation
        data, problem = self._row(
            "SELECT data, problem FROM expectation WHERE test = ?", test.id, "expectation of test"
        )
        if data is None:
            raise CompileError(str(problem))
        operator = self._operators[test.operator]
        try:
            return decode(bytes(data), operator, test.read_inputs, test.read_outputs())
        except (ValueError, TypeError, IndexError) as error:
            raise self._damaged(test.id, error) from error

    def appeal(self, test: CarvedCase) -> Expectation:
        """The same: the file has only the more precise measurement."""
        return self.expect(test)

    def _row(self, query: str, identifier: str, what: str) -> tuple[Any, ...]:
        try:
            row: tuple[Any, ...] | None = self._connection.execute(query, (identifier,)).fetchone()
        except sqlite3.DatabaseError as error:
            raise InputError(f"{self._path} is damaged ({error}): export again") from error
        if row is None:
            raise InputError(f"{self._path} has no {what} {identifier}: export again")
        return row

    def _damaged(self, identifier: str, error: Exception) -> InputError:
        return InputError(f"{self._path} is damaged (test {identifier}: {error}): export again")
