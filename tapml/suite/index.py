"""The suite's index: one SQLite file with the tests and the places of their tensors.

A run of an entry is one row, whatever the number of its call sites. The tests of a run are the
product of its row and a *layout*, which gives, for one entry and one set of shapes, each call
site's tensors and their places in the run's memory. A long decode has one layout.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgpack

from tapml.durable.transactions import transaction
from tapml.suite.chunks import Chunk
from tapml_targets.errors import InputError, SetupError

SCHEMA_VERSION: Final = 1
INDEX_NAME: Final = "index.sqlite"
# In the file's header: distinguishes a suite from other SQLite files.
APPLICATION_ID: Final = 0x7461706D

_SCHEMA: Final = (
    "CREATE TABLE suite (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE definition (name TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE operator (name TEXT PRIMARY KEY, hash TEXT NOT NULL, parameters BLOB NOT NULL)"
    " WITHOUT ROWID",
    "CREATE TABLE prompt (id INTEGER PRIMARY KEY, tokens TEXT NOT NULL, text TEXT)",
    "CREATE TABLE weight (name TEXT PRIMARY KEY, digest BLOB NOT NULL, chunks BLOB NOT NULL)"
    " WITHOUT ROWID",
    "CREATE TABLE layout (id INTEGER PRIMARY KEY, entry TEXT NOT NULL, symbols TEXT NOT NULL,"
    " orders BLOB NOT NULL, data BLOB NOT NULL)",
    "CREATE TABLE ordering (id INTEGER PRIMARY KEY, itemsize INTEGER NOT NULL,"
    " digest BLOB NOT NULL, chunks BLOB NOT NULL)",
    "CREATE TABLE run (id INTEGER PRIMARY KEY, prompt INTEGER NOT NULL, step INTEGER NOT NULL,"
    " entry TEXT NOT NULL, layout INTEGER NOT NULL, data BLOB NOT NULL)",
    "CREATE TABLE version (id INTEGER PRIMARY KEY, base INTEGER NOT NULL, data BLOB NOT NULL)",
    "CREATE INDEX version_of_base ON version (base, id)",
    "CREATE TABLE chunk (id INTEGER PRIMARY KEY, digest BLOB NOT NULL, pack INTEGER NOT NULL,"
    " offset INTEGER NOT NULL, length INTEGER NOT NULL)",
)


@dataclass
class Rows:
    """Rows to be inserted together."""

    chunks: list[Chunk] = field(default_factory=list)
    versions: list[tuple[int, int, bytes]] = field(default_factory=list)
    layouts: list[tuple[int, str, str, bytes, bytes]] = field(default_factory=list)
    weights: list[tuple[str, bytes, bytes]] = field(default_factory=list)
    orders: list[tuple[int, int, bytes, bytes]] = field(default_factory=list)
    runs: list[tuple[int, int, int, str, int, bytes]] = field(default_factory=list)
    prompts: list[tuple[int, str, str | None]] = field(default_factory=list)

    def clear(self) -> None:
        """Remove the rows but keep the lists, which others append to."""
        for rows in vars(self).values():
            rows.clear()


def pack(data: Any) -> bytes:
    """Plain data as a compact blob."""
    packed: bytes = msgpack.packb(data)
    return packed


def unpack(blob: bytes) -> Any:
    """Decode a blob of :func:`pack`, or raise :class:`InputError`."""
    try:
        return msgpack.unpackb(blob, use_list=False, strict_map_key=False)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise InputError(f"the suite's index is damaged ({error}); carve again") from error


def create_index(folder: Path, facts: Mapping[str, Any]) -> sqlite3.Connection:
    """Create an index in `folder`, for use by one thread at a time."""
    connection = connect_index(folder)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    with transaction(connection):
        for statement in _SCHEMA:
            connection.execute(statement)
        _set_facts(connection, facts)
    return connection


def connect_index(folder: Path) -> sqlite3.Connection:
    """Open the index in `folder` for writing."""
    connection = sqlite3.connect(folder / INDEX_NAME, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    # As for the packs: safe if the process dies; synced against power failures at the end.
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def _set_facts(connection: sqlite3.Connection, facts: Mapping[str, Any]) -> None:
    """Store facts about the suite, replacing those of the same name, within a transaction."""
    connection.executemany(
        "INSERT OR REPLACE INTO suite VALUES (?, ?)",
        [(name, json.dumps(value)) for name, value in facts.items()],
    )


def insert(connection: sqlite3.Connection, rows: Rows) -> None:
    """Insert all rows in one transaction."""
    with transaction(connection):
        connection.executemany(
            "INSERT INTO chunk VALUES (?, ?, ?, ?, ?)",
            [(c.id, c.digest, c.pack, c.offset, c.length) for c in rows.chunks],
        )
        connection.executemany("INSERT INTO version VALUES (?, ?, ?)", rows.versions)
        connection.executemany("INSERT INTO weight VALUES (?, ?, ?)", rows.weights)
        connection.executemany("INSERT INTO layout VALUES (?, ?, ?, ?, ?)", rows.layouts)
        connection.executemany("INSERT INTO ordering VALUES (?, ?, ?, ?)", rows.orders)
        connection.executemany("INSERT INTO prompt VALUES (?, ?, ?)", rows.prompts)
        connection.executemany("INSERT INTO run VALUES (?, ?, ?, ?, ?, ?)", rows.runs)


def insert_definitions(
    connection: sqlite3.Connection,
    operators: Iterable[tuple[str, str, bytes]],
    definitions: Mapping[str, bytes],
) -> None:
    """Store the operators (name, structural hash, parameters) and their definitions for replay."""
    with transaction(connection):
        connection.executemany("INSERT INTO operator VALUES (?, ?, ?)", operators)
        connection.executemany("INSERT INTO definition VALUES (?, ?)", definitions.items())


def finish_index(connection: sqlite3.Connection, facts: Mapping[str, Any]) -> None:
    """Store the last facts and convert the index to a single portable file."""
    with transaction(connection):
        _set_facts(connection, facts)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    # A finished suite is never written again; without a log it also opens on read-only media.
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()


def open_index(folder: Path) -> sqlite3.Connection:
    """Open the index of a suite for reading.

    Raises
    ------
    InputError
        If the folder is not a suite, or has another schema version.
    SetupError
        If the file cannot be opened, for instance for lack of permission.
    """
    path = folder / INDEX_NAME
    if not path.is_file():
        raise InputError(f"{folder} is not a suite: it has no {INDEX_NAME}")
    # A killed carve leaves a log: SQLite then has to recover, which writes.
    recover = path.with_name(INDEX_NAME + "-wal").exists()
    mode = "mode=rw" if recover else "mode=ro&immutable=1"
    if recover and not os.access(folder, os.W_OK):
        raise SetupError(
            f"{folder} has an interrupted carve, and opening it needs permission to write there"
        )
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?{mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
        )
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.DatabaseError as error:
        raise InputError(f"{path} is not a suite index: {error}") from error
    if application != APPLICATION_ID:
        connection.close()
        raise InputError(f"{folder} is not a suite: {INDEX_NAME} was written by another program")
    if version != SCHEMA_VERSION:
        connection.close()
        raise InputError(
            f"{folder} has suite schema {version}, this tapml reads schema {SCHEMA_VERSION}: "
            "carve again"
        )
    return connection


def read_facts(connection: sqlite3.Connection) -> dict[str, Any]:
    """All facts about the suite."""
    return {name: json.loads(value) for name, value in connection.execute("SELECT * FROM suite")}
