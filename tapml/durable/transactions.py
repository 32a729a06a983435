"""Transactions of SQLite files that announce their commits."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tapml_targets.boundaries import crossing


@contextmanager
def transaction(connection: sqlite3.Connection, place: Path | None) -> Iterator[None]:
    """Commit what the block does as one, or nothing of it.

    Parameters
    ----------
    connection
        In autocommit mode (``isolation_level=None``).
    place
        Its file; None for a database in memory.

    Raises
    ------
    sqlite3.Error
        If it cannot be committed; then nothing of it is there.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        _commit(connection, place)
    except BaseException:
        # A full disk may have ended the transaction already.
        with contextlib.suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        raise


def _commit(connection: sqlite3.Connection, place: Path | None) -> None:
    if place is None:
        connection.execute("COMMIT")
        return
    try:
        with crossing("commit", place):
            connection.execute("COMMIT")
    except OSError as error:
        # SQLite's own words for what the operating system calls ENOSPC.
        raise sqlite3.OperationalError("database or disk is full") from error
