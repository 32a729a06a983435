"""The tensors of a suite: their places, bytes and content hashes.

Chunks are named by their hashes, so the index identifies content without reading a tensor: the same
digest means the same bytes. The reverse does not hold, because equal tensors may be stored in
different forms.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from tapml.execute.arrays import Array, Bytes, flat_bytes, window
from tapml.suite.chunks import Chunk, ChunkReader, digest_of
from tapml.suite.index import unpack
from tapml.suite.layout import LaidValue, Layout
from tapml.suite.permutation import Permutation
from tapml.suite.summary import StoredBytes
from tapml.suite.version_rows import read_version
from tapml_targets.dtype import dtype
from tapml_targets.errors import InputError

PACKS_NAME: Final = "packs"
# Versions of a state are assembled from a base and rows; the most recent ones are cached.
VERSIONS_KEPT_BYTES: Final = 64 << 20
KEYS_KEPT: Final = 1 << 18


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One run of an entry.

    `segments` has the first byte of each segment and its chunks or version; `before` and `after`
    have, by state name, a version and the state's first byte there.
    """

    id: int
    prompt: int
    step: int
    layout: Layout
    segments: tuple[tuple[int, tuple[int, ...]] | int, ...]
    before: Mapping[str, tuple[int, int]]
    after: Mapping[str, tuple[int, int]]


class SuiteTensors:
    """Reads tensors of the suite at `path` with the index `connection`; chunks are mapped.

    Raises
    ------
    InputError
        If a pack is missing or too short.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._reader = ChunkReader(path / PACKS_NAME)
        self._layouts: dict[int, Layout] = {}
        self._versions: OrderedDict[int, Bytes] = OrderedDict()
        self._keys: dict[tuple[int, int], str] = {}
        self._orders: dict[int, Permutation] = {}
        self._orders_of: dict[int, tuple[int, ...]] = {}
        self._reader.check_sizes(
            dict(connection.execute("SELECT pack, MAX(offset + length) FROM chunk GROUP BY pack"))
        )

    def close(self) -> None:
        """Close the packs. Arrays that were read remain valid."""
        self._reader.close()
        self._versions.clear()

    def stored(self) -> StoredBytes:
        """Sizes of the packs."""

        def held(table: Literal["weight", "ordering"]) -> int:
            query = {
                "weight": "SELECT chunks FROM weight",
                "ordering": "SELECT chunks FROM ordering",
            }[table]
            rows = self._connection.execute(query)
            identifiers = {each for (blob,) in rows for each in unpack(blob)}
            return sum(chunk.length for chunk in self._places(tuple(identifiers)))

        return StoredBytes(
            len(self._chunks),
            sum(chunk.length for chunk in self._chunks.values()),
            held("weight"),
            held("ordering"),
        )

    def layout(self, identifier: int) -> Layout:
        """A layout, by its number in the index."""
        layout = self._layouts.get(identifier)
        if layout is None:
            entry, symbols, orders, data = self._row(
                "SELECT entry, symbols, orders, data FROM layout WHERE id = ?", identifier
            )
            layout = Layout.unpack(entry, json.loads(symbols), data)
            self._orders_of[id(layout)] = unpack(orders)
            self._layouts[identifier] = layout
        return layout

    def read(self, run: RunRecord, index: int, *, verify: bool = False) -> Array:
        """A tensor of a run, by its index in the run's layout."""
        value = run.layout.values[index]
        if value.source == "moved":
            source = self.read(run, int(value.key), verify=verify)
            order = self._order(run.layout, value.byte_offset)
            memory, first = order.apply(source), 0
        else:
            place, first = self._place(run, value)
            memory = (
                self._version(place, verify=verify)
                if isinstance(place, int)
                else self._reader.read(self._places(place), verify=verify)
            )
        if first + _nbytes(value) > len(memory):
            raise InputError(f"{self._path} is damaged ({value.name}); carve again")
        array = window(memory, first, value.shape, value.dtype)
        array.flags.writeable = False
        return array

    def key(self, run: RunRecord, index: int) -> str:
        """Content hash of a tensor of a run; the same in every suite."""
        place = (run.id, index)
        key = self._keys.get(place)
        if key is None:
            if len(self._keys) >= KEYS_KEPT:
                self._keys.clear()
            key = self._find_key(run, index)
            self._keys[place] = key
        return key

    def _find_key(self, run: RunRecord, index: int) -> str:
        value = run.layout.values[index]
        match value.source:
            case "weight":
                # Hashed when it was stored; nearly every tensor is a complete weight.
                content = self._weight(str(value.key))[0]
                window_of = f"{value.byte_offset}+{_nbytes(value)}"
            case "moved":
                content = self._order_row(run.layout, value.byte_offset)[0]
                window_of = self.key(run, int(value.key))
            case _:
                content = digest_of(flat_bytes(self.read(run, index)))
                window_of = ""
        return hashlib.sha256(content + window_of.encode()).hexdigest()

    def stored_digest(self, run: RunRecord, index: int) -> bytes:
        """Content hash of a tensor from the index alone; see :class:`StoredContent`."""
        value = run.layout.values[index]
        if value.source == "moved":
            content = self._order_row(run.layout, value.byte_offset)[0]
            place = self.stored_digest(run, int(value.key)).hex()
        elif value.source == "weight":
            content, place = self._weight(str(value.key))[0], str(value.byte_offset)
        else:
            where, first = self._place(run, value)
            content = (
                self._content.of_version(where)
                if isinstance(where, int)
                else self._content.of_chunks(where)
            )
            place = str(first)
        return hashlib.sha256(content + f"{place}+{_nbytes(value)}".encode()).digest()

    def weight_digest(self, name: str) -> str:
        """Content hash of a weight, hexadecimal."""
        return self._weight(name)[0].hex()

    def check_places(self, run: RunRecord) -> None:
        """Raise :class:`InputError` unless every tensor of a run is inside stored data."""
        for index, value in enumerate(run.layout.values):
            self.stored_digest(run, index)
            if value.source == "moved":
                continue
            place, first = self._place(run, value)
            if isinstance(place, int):
                continue
            if first + _nbytes(value) > sum(chunk.length for chunk in self._places(place)):
                raise InputError(f"{self._path} is damaged ({value.name}); carve again")

    def verify(self) -> int:
        """Check every chunk against its hash; return the number of chunks.

        Raises
        ------
        InputError
            If one is damaged.
        """
        for chunk in self._chunks.values():
            self._reader.read([chunk], verify=True)
        return len(self._chunks)

    @cached_property
    def _content(self) -> StoredContent:
        return StoredContent(self._connection, self._chunks)

    @cached_property
    def _chunks(self) -> dict[int, Chunk]:
        rows = self._connection.execute("SELECT id, digest, pack, offset, length FROM chunk")
        return {row[0]: Chunk(*row) for row in rows}

    def _place(self, run: RunRecord, value: LaidValue) -> tuple[tuple[int, ...] | int, int]:
        """The chunks or the version that hold a tensor, and its first byte there."""
        match value.source:
            case "weight":
                return self._weight(str(value.key))[1], value.byte_offset
            case "segment":
                place = run.segments[int(value.key)]
                if isinstance(place, int):
                    return place, value.byte_offset
                return place[1], place[0] + value.byte_offset
            case "before" | "after":
                states = run.before if value.source == "before" else run.after
                version, first = states[str(value.key)]
                return version, first + value.byte_offset
            case "moved":
                raise ValueError("a permuted value has no storage")

    def _order(self, layout: Layout, number: int) -> Permutation:
        identifier = self._orders_of[id(layout)][number]
        if identifier not in self._orders:
            _, itemsize, chunks = self._order_row(layout, number)
            indices = self._reader.read(self._places(unpack(chunks)))
            self._orders[identifier] = Permutation(indices.view(np.uint32), itemsize)
        return self._orders[identifier]

    def _order_row(self, layout: Layout, number: int) -> tuple[bytes, int, bytes]:
        digest, itemsize, chunks = self._row(
            "SELECT digest, itemsize, chunks FROM ordering WHERE id = ?",
            self._orders_of[id(layout)][number],
        )
        return digest, itemsize, chunks

    def _version(self, version: int, *, verify: bool) -> Bytes:
        kept = self._versions.get(version)
        if kept is not None and not verify:
            self._versions.move_to_end(version)
            return kept
        (base,) = self._row("SELECT base FROM version WHERE id = ?", version)
        blobs = [
            data
            for (data,) in self._connection.execute(
                "SELECT data FROM version WHERE base = ? AND id <= ? ORDER BY id", (base, version)
            )
        ]
        memory = read_version(
            blobs, lambda chunks: self._reader.read(self._places(chunks), verify=verify)
        )
        self._versions[version] = memory
        while len(self._versions) > 1 and (
            sum(len(kept) for kept in self._versions.values()) > VERSIONS_KEPT_BYTES
        ):
            self._versions.popitem(last=False)
        return memory

    def _weight(self, name: str) -> tuple[bytes, tuple[int, ...]]:
        digest, chunks = self._row("SELECT digest, chunks FROM weight WHERE name = ?", name)
        return digest, unpack(chunks)

    def _places(self, identifiers: tuple[int, ...]) -> list[Chunk]:
        try:
            return [self._chunks[identifier] for identifier in identifiers]
        except (KeyError, TypeError) as error:
            raise InputError(f"{self._path} is damaged (chunk {error}); carve again") from error

    def _row(self, query: str, key: int | str) -> Any:
        row = self._connection.execute(query, (key,)).fetchone()
        if row is None:
            raise InputError(f"{self._path} is damaged ({query}: {key}); carve again")
        return row


def _nbytes(value: LaidValue) -> int:
    return dtype(value.dtype).nbytes(prod(value.shape))


@dataclass
class StoredContent:
    """Cached digests of chunks and versions, from the suite's index and its chunks by id."""

    connection: sqlite3.Connection
    chunks: Mapping[int, Chunk]
    _versions: dict[int, bytes] = field(default_factory=dict)

    def of_chunks(self, identifiers: Iterable[int]) -> bytes:
        """The digest of consecutive chunks.

        Raises
        ------
        InputError
            If the index names a chunk that it does not have.
        """
        digest = hashlib.sha256()
        try:
            for identifier in identifiers:
                digest.update(self.chunks[identifier].digest)
        except (KeyError, TypeError) as error:
            raise InputError(f"the suite's index is damaged (chunk {error}); carve again") from None
        return digest.digest()

    def of_version(self, version: int) -> bytes:
        """The digest of a version: of its base, and of the rows written since.

        Raises
        ------
        InputError
            If the index does not have it.
        """
        if version not in self._versions:
            self._learn_versions_like(version)
        try:
            return self._versions[version]
        except KeyError:
            raise InputError(
                f"the suite's index is damaged (version {version}); carve again"
            ) from None

    def _learn_versions_like(self, version: int) -> None:
        """Hash all versions of one base at once: each digest extends the one before."""
        rows = self.connection.execute(
            "SELECT id, data FROM version WHERE base = (SELECT base FROM version WHERE id = ?) "
            "ORDER BY id",
            (version,),
        )
        digest = b""
        for identifier, blob in rows:
            content = unpack(blob)
            if isinstance(content, int):
                # An all-zero base.
                found, place = b"", repr(content)
            elif content and isinstance(content[-1], tuple):
                found, place = self.of_chunks(content[-1]), repr(content[:-1])
            else:
                found, place = self.of_chunks(content), ""
            digest = hashlib.sha256(digest + found + place.encode()).digest()
            self._versions[identifier] = digest
