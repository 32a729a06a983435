"""A suite of carved tests on disk: a folder with an index and packs of chunks."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import numpy as np

from tapml.carve.carved_test import CarvedTest, TensorRecord
from tapml.carve.chunks import Chunk, ChunkReader, digest_of
from tapml.carve.definitions import unpack_operators, unpack_parameters
from tapml.carve.index import open_index, read_facts, unpack
from tapml.carve.layout import LaidCall, LaidValue, Layout
from tapml.carve.movement import Order
from tapml.carve.selection import Filters
from tapml.carve.summary import SuiteSummary, summarize
from tapml.carve.version_rows import read_version
from tapml.execute.arrays import Array, Bytes, flat_bytes, window
from tapml.graph.plan import Operator
from tapml_targets.dtype import dtype
from tapml_targets.errors import InputError
from tapml_targets.library import Role

PACKS_NAME: Final = "packs"
# Versions of a state are put together from a base and rows; the last ones are kept.
VERSIONS_KEPT_BYTES: Final = 64 << 20
KEYS_KEPT: Final = 1 << 18

_Parameters: TypeAlias = tuple[tuple[str, Role], ...]


@dataclass(frozen=True)
class CarvedPrompt:
    """A prompt of the carve: its tokens, and its text where there was one."""

    token_ids: tuple[int, ...]
    text: str | None


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One run of an entry.

    `segments` holds, for each, its first byte and the chunks it lies in, or a version; `before` and
    `after` hold, by state name, a version and the state's first byte there.
    """

    id: int
    prompt: int
    step: int
    layout: Layout
    segments: tuple[tuple[int, tuple[int, ...]] | int, ...]
    before: Mapping[str, tuple[int, int]]
    after: Mapping[str, tuple[int, int]]


class Suite:
    """An open suite. Made by :meth:`open`; a context manager.

    Attributes
    ----------
    path
        Its folder.
    facts
        What was recorded about it: ``model``, ``weights_hash``, ``plan_hash``, ``filters``, ...
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._reader = ChunkReader(path / PACKS_NAME)
        self._layouts: dict[int, Layout] = {}
        self._versions: OrderedDict[int, Bytes] = OrderedDict()
        self._keys: dict[tuple[int, int], str] = {}
        self._orders: dict[int, Order] = {}
        self._orders_of: dict[int, tuple[int, ...]] = {}
        self.facts: dict[str, Any] = read_facts(connection)
        self._reader.check_sizes(
            dict(connection.execute("SELECT pack, MAX(offset + length) FROM chunk GROUP BY pack"))
        )

    @classmethod
    def open(cls, path: str | Path) -> Suite:
        """Open a suite for reading.

        A carve that was killed leaves its suite in ``<path>.partial``, with the tests it had
        stored; that can be opened as well, and :attr:`complete` is False.

        Raises
        ------
        InputError
            If there is no suite, or one of another schema version.
        """
        folder = Path(path)
        partial = folder.with_name(folder.name + ".partial")
        if not folder.exists():
            hint = (
                f"; a carve that did not end left {partial}, which can be opened"
                if partial.exists()
                else ""
            )
            raise InputError(f"there is no suite at {folder}{hint}")
        connection = open_index(folder)
        try:
            return cls(folder, connection)
        except InputError:
            connection.close()
            raise
        except sqlite3.DatabaseError as error:
            connection.close()
            raise InputError(f"{folder} is damaged ({error}); carve again") from error

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
        """Close the index. Arrays that were read stay valid."""
        self._reader.close()
        self._versions.clear()
        self._connection.close()

    @property
    def complete(self) -> bool:
        """Whether the carve ran to its end."""
        return bool(self.facts.get("complete"))

    @property
    def plan_hash(self) -> str:
        """SHA-256 of the packed plan the suite was carved from."""
        return str(self.facts["plan_hash"])

    @property
    def weights_hash(self) -> str:
        """The model's weights hash."""
        return str(self.facts["weights_hash"])

    @cached_property
    def operators(self) -> dict[str, Operator]:
        """Definitions of the operators that have tests or may have had; needs no model."""
        (blob,) = self._connection.execute(
            "SELECT data FROM definition WHERE name = 'operators'"
        ).fetchone()
        return unpack_operators(blob)

    @cached_property
    def operator_hashes(self) -> dict[str, str]:
        """Structural hash of every operator, by name."""
        return dict(self._connection.execute("SELECT name, hash FROM operator"))

    @cached_property
    def prompts(self) -> tuple[CarvedPrompt, ...]:
        """The prompts, in order."""
        rows = self._connection.execute("SELECT tokens, text FROM prompt ORDER BY id")
        return tuple(CarvedPrompt(tuple(json.loads(tokens)), text) for tokens, text in rows)

    def tests(self, filters: Filters | None = None) -> Iterator[CarvedTest]:
        """The tests that pass `filters`, in the order in which they were carved."""
        filters = filters or Filters()
        for run in self.runs(filters):
            for call in run.layout.calls:
                if filters.site(call.operator, call.layer):
                    yield self._test(run, call)

    def count(self, filters: Filters | None = None) -> int:
        """How many tests pass `filters`."""
        filters = filters or Filters()
        return sum(
            filters.site(call.operator, call.layer)
            for run in self.runs(filters)
            for call in run.layout.calls
        )

    def test(self, identifier: str) -> CarvedTest:
        """The test of an id.

        Raises
        ------
        InputError
            If there is none.
        """
        site, _, place = identifier.rpartition("@")
        for run in self.runs(Filters()):
            if place == f"p{run.prompt}.s{run.step}":
                for call in run.layout.calls:
                    if call.site == site:
                        return self._test(run, call)
        raise InputError(f"{self.path} has no test {identifier!r}")

    def runs(self, filters: Filters) -> Iterator[RunRecord]:
        """The runs that pass `filters`."""
        rows = self._connection.execute(
            "SELECT id, prompt, step, entry, layout, data FROM run ORDER BY id"
        )
        for identifier, prompt, step, entry, layout, data in rows:
            if not filters.run(entry, step):
                continue
            try:
                segments, before, after = unpack(data)
            except (TypeError, ValueError) as error:
                raise InputError(f"{self.path} is damaged ({error}); carve again") from error
            yield RunRecord(identifier, prompt, step, self._layout(layout), segments, before, after)

    def read_tensor(self, run: RunRecord, index: int, *, verify: bool = False) -> Array:
        """A tensor of a run, by its index in the run's layout."""
        value = run.layout.values[index]
        if value.source == "moved":
            source = self.read_tensor(run, int(value.key), verify=verify)
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
            raise InputError(f"{self.path} is damaged ({value.name}); carve again")
        array = window(memory, first, value.shape, value.dtype)
        array.flags.writeable = False
        return array

    def tensor_key(self, run: RunRecord, index: int) -> str:
        """Identifies the content of a tensor of a run; the same in every suite."""
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
                # Hashed when it was stored; the whole weight for nearly every tensor.
                content = self._weight(str(value.key))[0]
                window_of = f"{value.byte_offset}+{_nbytes(value)}"
            case "moved":
                content = self._order_row(run.layout, value.byte_offset)[0]
                window_of = self.tensor_key(run, int(value.key))
            case _:
                content = digest_of(flat_bytes(self.read_tensor(run, index)))
                window_of = ""
        return hashlib.sha256(content + window_of.encode()).hexdigest()

    def weight_digest(self, name: str) -> str:
        """Content hash of a weight, hexadecimal."""
        return self._weight(name)[0].hex()

    def verify(self) -> int:
        """Check every chunk against its hash; return how many there are.

        Raises
        ------
        InputError
            If one is damaged.
        """
        for chunk in self._chunks.values():
            self._reader.read([chunk], verify=True)
        return len(self._chunks)

    def summary(self) -> SuiteSummary:
        """Tests per operator and entry, bytes, and how often bytes are used."""
        return summarize(self, sum(chunk.length for chunk in self._chunks.values()))

    @cached_property
    def _chunks(self) -> dict[int, Chunk]:
        rows = self._connection.execute("SELECT id, digest, pack, offset, length FROM chunk")
        return {row[0]: Chunk(*row) for row in rows}

    @cached_property
    def _parameters(self) -> dict[str, _Parameters]:
        rows = self._connection.execute("SELECT name, parameters FROM operator")
        return {name: unpack_parameters(blob) for name, blob in rows}

    def _layout(self, identifier: int) -> Layout:
        layout = self._layouts.get(identifier)
        if layout is None:
            entry, symbols, orders, data = self._row(
                "SELECT entry, symbols, orders, data FROM layout WHERE id = ?", identifier
            )
            layout = Layout.unpack(entry, json.loads(symbols), data)
            self._orders_of[id(layout)] = unpack(orders)
            self._layouts[identifier] = layout
        return layout

    def _test(self, run: RunRecord, call: LaidCall) -> CarvedTest:
        parameters = self._parameters[call.operator]

        def records(roles: tuple[Role, ...]) -> tuple[TensorRecord, ...]:
            return tuple(
                TensorRecord(name, role, v.name, v.shape, v.dtype, v.lifetime, self, run, index)
                for (name, role), index in zip(parameters, call.arguments, strict=True)
                if role in roles
                for v in (run.layout.values[index],)
            )

        return CarvedTest(
            id=f"{call.site}@p{run.prompt}.s{run.step}",
            operator=call.operator,
            operator_hash=self.operator_hashes[call.operator],
            site=call.site,
            entry=run.layout.entry,
            layer=call.layer,
            prompt=run.prompt,
            step=run.step,
            symbols=dict(call.symbols),
            shape_symbols=run.layout.symbols,
            inputs=records(("input",)),
            outputs=records(("output",)),
        )

    def _place(self, run: RunRecord, value: LaidValue) -> tuple[tuple[int, ...] | int, int]:
        """The chunks or the version a tensor lies in, and its first byte there."""
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
                raise ValueError("a moved value has no place of its own")

    def _order(self, layout: Layout, number: int) -> Order:
        identifier = self._orders_of[id(layout)][number]
        if identifier not in self._orders:
            _, itemsize, chunks = self._order_row(layout, number)
            indices = self._reader.read(self._places(unpack(chunks)))
            self._orders[identifier] = Order(indices.view(np.uint32), itemsize)
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
            raise InputError(f"{self.path} is damaged (chunk {error}); carve again") from error

    def _row(self, query: str, key: int | str) -> Any:
        row = self._connection.execute(query, (key,)).fetchone()
        if row is None:
            raise InputError(f"{self.path} is damaged ({query}: {key}); carve again")
        return row


def _nbytes(value: LaidValue) -> int:
    elements = 1
    for extent in value.shape:
        elements *= extent
    return dtype(value.dtype).nbytes(elements)
