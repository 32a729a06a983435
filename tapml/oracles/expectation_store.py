"""Expectations on disk: one SQLite file beside the suite.

An element takes six bytes: float64's difference from the reference's output as float32, and the
sensitivity as the upper half of a float32. Outputs of pure data movement take none.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgpack
import numpy as np
from numpy.typing import NDArray

from tapml.durable.transactions import transaction
from tapml.plan.graph_plan import Operator
from tapml.verdicts.expectation import (
    Expectation,
    ExpectedOutput,
    IndependentCheck,
    IndependentOutput,
)
from tapml.verdicts.index_source import locate_source
from tapml.verdicts.operator_class import traits_of
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import SetupError
from tapml_targets.float_formats import as_float64

STORE_NAME: Final = "oracle.sqlite"
"""Name of the file in the folder of a session or of a suite."""

log = logging.getLogger(__name__)
_BUSY_SECONDS: Final = 30.0
_WAITING_BYTES: Final = 8 << 20
_WAITING_ENTRIES: Final = 256


def store_of(suite: Path) -> Path | None:
    """Path of the expectations of the suite in this folder.

    Beside the suite in a session's folder, else inside it; None if the folder is not writable.
    """
    suite = suite.resolve()
    in_session = suite.parent / STORE_NAME
    path = in_session if in_session.is_file() else suite / STORE_NAME
    writable = os.access(path.parent, os.W_OK) and (
        not path.exists() or os.access(path, os.R_OK | os.W_OK)
    )
    return path if writable else None


class ExpectationStore:
    """Encoded expectations by key. Safe to use from several threads and processes.

    Parameters
    ----------
    path
        The file, created if missing. None keeps everything in memory.

    Raises
    ------
    SetupError
        If the file cannot be opened or is not such a store.
    """

    def __init__(self, path: Path | None) -> None:
        self._lock = threading.Lock()
        self._path = path
        self._full = False
        # One transaction per test would cost more than the arithmetic of a small one.
        self._waiting: dict[str, bytes] = {}
        self._waiting_bytes = 0
        try:
            self._database = sqlite3.connect(
                ":memory:" if path is None else path,
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            self._database.execute("PRAGMA journal_mode=WAL")
            # It is a cache: entries lost in a power cut are computed again.
            self._database.execute("PRAGMA synchronous=OFF")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS expectation (key TEXT PRIMARY KEY, data BLOB NOT NULL)"
                " WITHOUT ROWID"
            )
        except sqlite3.Error as error:
            raise SetupError(
                f"the oracle's cache {path} cannot be used ({error}); delete it or make its folder "
                "writable"
            ) from error

    def close(self) -> None:
        """Write pending entries and close the file."""
        with self._lock:
            self._flush()
            self._database.close()

    def has(self, key: str) -> bool:
        """Whether `key` is stored."""
        with self._lock:
            return key in self._waiting or self._select("1", key) is not None

    def empty(self) -> bool:
        """Whether the store is empty."""
        with self._lock:
            row = self._database.execute("SELECT 1 FROM expectation LIMIT 1").fetchone()
        return row is None and not self._waiting

    def read(self, key: str) -> bytes | None:
        """The data of `key`, or None."""
        with self._lock:
            if key in self._waiting:
                return self._waiting[key]
            row = self._select("data", key)
        return None if row is None else bytes(row[0])

    def _select(self, column: Literal["1", "data"], key: str) -> tuple[Any, ...] | None:
        query = {
            "1": "SELECT 1 FROM expectation WHERE key = ?",
            "data": "SELECT data FROM expectation WHERE key = ?",
        }[column]
        try:
            row: tuple[Any, ...] | None = self._database.execute(query, (key,)).fetchone()
        except sqlite3.DatabaseError as error:
            raise SetupError(
                f"the oracle's cache {self._path} is damaged ({error}); delete it"
            ) from error
        return row

    def write(self, key: str, data: bytes) -> None:
        """Store `data`. A full disk disables the cache and is logged once; the run continues."""
        with self._lock:
            if self._full:
                return
            self._waiting[key] = data
            self._waiting_bytes += len(data)
            if self._waiting_bytes > _WAITING_BYTES or len(self._waiting) >= _WAITING_ENTRIES:
                self._flush()

    def _flush(self) -> None:
        rows, self._waiting, self._waiting_bytes = list(self._waiting.items()), {}, 0
        if not rows or self._full:
            return
        try:
            with transaction(self._database):
                self._database.executemany("INSERT OR REPLACE INTO expectation VALUES (?, ?)", rows)
        except sqlite3.DatabaseError as error:
            self._full = True
            log.warning("oracle results are no longer cached: %s", error)


def encode(expectation: Expectation, reference: Sequence[NDArray[Any]]) -> bytes:
    """`expectation` as bytes that :func:`decode` reads back beside the reference's outputs."""
    header, parts = [], []
    for output, raw in zip(expectation.outputs, reference, strict=True):
        if output.is_float:
            values, form = _encode_values(output, raw)
        elif np.array_equal(output.values, raw):
            values, form = b"", "equal"
        else:
            values, form = output.values.tobytes(), "whole"
        moved = b""
        if output.sensitivity.any():
            moved = (output.sensitivity.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        header.append([form, len(values), len(moved), output.reference_ratio, output.source_place])
        parts += [values, moved]
    check = None if expectation.independent is None else pack_check(expectation.independent)
    head = msgpack.packb([expectation.terms, expectation.repeats, header, check])
    return b"".join([len(head).to_bytes(4, "little"), head, *parts])


def _encode_values(output: ExpectedOutput, raw: NDArray[Any]) -> tuple[bytes, str]:
    reference = as_float64(raw, output.dtype)
    if np.array_equal(output.values, reference, equal_nan=True):
        return b"", "equal"
    with np.errstate(all="ignore"):
        added = (output.values - reference).astype(np.float32)
        rebuilt = reference + added
    if np.array_equal(rebuilt, output.values, equal_nan=True):
        return added.tobytes(), "residual"
    return output.values.tobytes(), "whole"


def decode(
    data: bytes,
    operator: Operator,
    read_inputs: Callable[[], Sequence[NDArray[Any]]],
    reference: Sequence[NDArray[Any]],
) -> Expectation:
    """The expectation that `data` holds.

    Parameters
    ----------
    data
        From :func:`encode`.
    operator
        Provides names, dtypes and kinds of the outputs.
    read_inputs
        Reads the test's raw inputs; called only for outputs that are indices.
    reference
        The reference's raw outputs.
    """
    head_end = 4 + int.from_bytes(data[:4], "little")
    terms, repeats, header, check = msgpack.unpackb(data[4:head_end])
    position = head_end
    outputs = []
    for parameter, kind, traits, raw, (form, values_size, moved_size, ratio, place) in zip(
        operator.written, operator.output_kinds, traits_of(operator), reference, header, strict=True
    ):
        is_float = lookup(parameter.dtype).is_float
        plain = as_float64(raw, parameter.dtype) if is_float else raw
        stored = data[position : position + values_size]
        position += values_size
        values = plain
        if form == "residual":
            values = plain + np.frombuffer(stored, np.float32).reshape(raw.shape)
        elif form == "whole":
            values = np.frombuffer(stored, plain.dtype).reshape(raw.shape)
        moved = data[position : position + moved_size]
        position += moved_size
        sensitivity = np.zeros(raw.shape, np.float32)
        if moved:
            wide = np.left_shift(np.frombuffer(moved, np.uint16), 16, dtype=np.uint32)
            sensitivity = wide.view(np.float32).reshape(raw.shape)
        source = None
        if place is not None:
            source = locate_source(place, operator.read, read_inputs(), raw.shape)
        outputs.append(
            ExpectedOutput(
                parameter.name,
                parameter.dtype,
                kind,
                values,
                sensitivity,
                source,
                ratio,
                traits.operator_class,
                traits.arithmetic,
            )
        )
    independent = None if check is None else unpack_check(check, outputs)
    return Expectation(tuple(outputs), terms, repeats, independent)


def pack_check(check: IndependentCheck) -> bytes:
    """`check` as bytes that :func:`unpack_check` reads back beside the expected outputs."""
    outputs = [
        [
            output.twin_ratio,
            output.reference_ratio,
            output.bound,
            None if output.values is None else output.values.tobytes(),
        ]
        for output in check.outputs
    ]
    packed: bytes = msgpack.packb([check.reason, outputs])
    return packed


def unpack_check(data: bytes, outputs: Sequence[ExpectedOutput]) -> IndependentCheck:
    """Inverse of :func:`pack_check`; `outputs` are those of the same expectation.

    Raises
    ------
    ValueError
        If the bytes are not such a check.
    """
    reason, rows = msgpack.unpackb(data)
    if not isinstance(reason, str) or len(rows) != (0 if reason else len(outputs)):
        raise ValueError("no independent check of these outputs")
    return IndependentCheck(
        tuple(
            IndependentOutput(float(twin), float(reference), float(bound), _values(raw, output))
            for (twin, reference, bound, raw), output in zip(
                rows, outputs[: len(rows)], strict=True
            )
        ),
        reason,
    )


def _values(raw: bytes | None, output: ExpectedOutput) -> Any:
    if raw is None:
        return None
    return np.frombuffer(raw, output.values.dtype).reshape(output.values.shape)
