"""SQLite transactions whose commits are failpoints."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from tapml_targets.failpoints import failpoint, planned_fault


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block as one transaction of a connection in autocommit mode.

    Raises
    ------
    sqlite3.Error
        If it cannot be committed; it is rolled back then.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        _commit(connection)
    except BaseException:
        # A full disk may have ended the transaction already.
        with contextlib.suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        raise


def _commit(connection: sqlite3.Connection) -> None:
    if planned_fault() is None:
        connection.execute("COMMIT")
        return
    _, _, place = connection.execute("PRAGMA database_list").fetchone()
    try:
        with failpoint("commit", place):
            connection.execute("COMMIT")
    except OSError as error:
        # The message that SQLite gives for ENOSPC.
        raise sqlite3.OperationalError("database or disk is full") from error
