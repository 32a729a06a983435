"""Transactions of SQLite files that announce their commits."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from tapml_targets.boundaries import crossing, planned_fault


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit what the block does as one, or nothing of it.

    Parameters
    ----------
    connection
        In autocommit mode (``isolation_level=None``).

    Raises
    ------
    sqlite3.Error
        If it cannot be committed; then nothing of it is there.
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
        with crossing("commit", place):
            connection.execute("COMMIT")
    except OSError as error:
        # SQLite's own words for what the operating system calls ENOSPC.
        raise sqlite3.OperationalError("database or disk is full") from error
