"""A suite of carved tests on disk: a folder with an index and packs of chunks."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

from tapml.durable.files import recover_folder
from tapml.execute.device_reference import identity_of
from tapml.plan.graph_plan import Operator
from tapml.suite.carved_test import CarvedTest, TensorRecord
from tapml.suite.definitions import unpack_operators, unpack_parameters
from tapml.suite.index import open_index, read_facts, unpack
from tapml.suite.layout import LaidCall, Layout
from tapml.suite.selection import Filters
from tapml.suite.summary import SuiteSummary
from tapml.suite.tensors import RunRecord, SuiteTensors
from tapml_targets.dtype import dtype
from tapml_targets.errors import InputError, ProtocolError
from tapml_targets.library import Role

_Parameters: TypeAlias = tuple[tuple[str, Role], ...]
_SEARCHED: Final = 2000
"""Up to this number of tests, an unknown id is compared with all others for a suggestion."""


@dataclass(frozen=True)
class CarvedPrompt:
    """A carved prompt: its tokens, and its text if it had one."""

    token_ids: tuple[int, ...]
    text: str | None


class Suite:
    """An open suite. Made by :meth:`open`; a context manager.

    Attributes
    ----------
    path
        Its folder.
    facts
        Its metadata: ``model``, ``weights_hash``, ``plan_hash``, ``filters``, ...
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._tensors = SuiteTensors(path, connection)
        self._last_run: tuple[str, RunRecord] | None = None
        # Layouts live as long as the suite.
        self._calls: dict[int, dict[str, LaidCall]] = {}
        self.facts: dict[str, Any] = read_facts(connection)

    @classmethod
    def open(cls, path: str | Path) -> Suite:
        """Open a suite for reading.

        A killed carve leaves its suite in ``<path>.partial`` with the tests stored so far. That
        can be opened as well, and :attr:`complete` is False.

        Raises
        ------
        InputError
            If there is no suite, or one of another schema version.
        """
        folder = Path(path)
        recover_folder(folder)
        partial = folder.with_name(folder.name + ".partial")
        if not folder.exists():
            hint = (
                f"; an interrupted carve left {partial}, which can be opened"
                if partial.exists()
                else ": expected a folder that `tapml carve --out` wrote, or a session's suite/"
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the index. Arrays that were read remain valid."""
        self._tensors.close()
        self._connection.close()

    @property
    def complete(self) -> bool:
        """Whether the carve finished."""
        return bool(self.facts.get("complete"))

    @property
    def plan_hash(self) -> str:
        """SHA-256 of the packed plan the suite was carved from."""
        return str(self.facts["plan_hash"])

    @property
    def reference(self) -> str:
        """What its outputs were recorded on: a device, or ``cpu``, this process's processor."""
        device = self.facts.get("reference")
        return "cpu" if device is None else f"{device['device']} ({device['name']})"

    @property
    def reference_identity(self) -> str:
        """Identifies the device that its outputs were recorded on; empty for ``cpu``."""
        return identity_of(self.facts.get("reference"))

    @property
    def weights_hash(self) -> str:
        """The model's weights hash."""
        return str(self.facts["weights_hash"])

    @cached_property
    def operators(self) -> dict[str, Operator]:
        """Definitions of the suite's operators; needs no model."""
        (blob,) = self._connection.execute(
            "SELECT data FROM definition WHERE name = 'operators'"
        ).fetchone()
        try:
            return unpack_operators(blob)
        except ProtocolError as error:
            raise InputError(f"{self.path} cannot be used ({error}); carve again") from error

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
        """The tests that match `filters`, in carving order."""
        filters = filters or Filters()
        for run in self.runs(filters):
            for call in run.layout.calls:
                if filters.site(call.operator, call.layer):
                    yield self._test(run, call)

    def tests_of(self, operator: str, filters: Filters | None = None) -> Iterator[CarvedTest]:
        """The tests of one operator that match `filters`, in carving order."""
        filters = filters or Filters()
        for run in self.runs(filters):
            for call in run.layout.calls:
                if call.operator == operator and filters.site(operator, call.layer):
                    yield self._test(run, call)

    def tested_operators(self, filters: Filters | None = None) -> set[str]:
        """Names of the operators with a test that matches `filters`."""
        filters = filters or Filters()
        return {
            call.operator
            for run in self.runs(filters)
            for call in run.layout.calls
            if filters.site(call.operator, call.layer)
        }

    def count(self, filters: Filters | None = None) -> int:
        """Number of tests that match `filters`."""
        filters = filters or Filters()
        return sum(
            filters.site(call.operator, call.layer)
            for run in self.runs(filters)
            for call in run.layout.calls
        )

    def test(self, identifier: str) -> CarvedTest:
        """Look up a test by id.

        Raises
        ------
        InputError
            If there is none.
        """
        site, _, place = identifier.rpartition("@")
        run = self._run_at(place)
        if run is not None:
            call = self._calls_of(run.layout).get(site)
            if call is not None:
                return self._test(run, call)
        known = [test.id for test in islice(self.tests(), _SEARCHED)]
        near = get_close_matches(identifier, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(
            f"{self.path} has no test {identifier!r}; {hint}`tapml inspect {self.path} --tests` "
            "lists them"
        )

    def runs(self, filters: Filters) -> Iterator[RunRecord]:
        """The runs that match `filters`."""
        rows = self._connection.execute(
            "SELECT id, prompt, step, entry, layout, data FROM run ORDER BY id"
        )
        for row in rows:
            _, _, step, entry, _, _ = row
            if filters.run(entry, step):
                yield self._run(row)

    def _run(self, row: tuple[Any, ...]) -> RunRecord:
        identifier, prompt, step, _, layout, data = row
        try:
            segments, before, after = unpack(data)
        except (TypeError, ValueError) as error:
            raise InputError(f"{self.path} is damaged ({error}); carve again") from error
        return RunRecord(
            identifier, prompt, step, self._tensors.layout(layout), segments, before, after
        )

    def _run_at(self, place: str) -> RunRecord | None:
        """The run named in an id; caches the last one, because tests come in order."""
        if self._last_run is None or self._last_run[0] != place:
            identifier = self._run_ids.get(place)
            if identifier is None:
                return None
            row = self._connection.execute(
                "SELECT id, prompt, step, entry, layout, data FROM run WHERE id = ?", (identifier,)
            ).fetchone()
            self._last_run = place, self._run(row)
        return self._last_run[1]

    @cached_property
    def _run_ids(self) -> dict[str, int]:
        rows = self._connection.execute("SELECT id, prompt, step FROM run")
        return {f"p{prompt}.s{step}": identifier for identifier, prompt, step in rows}

    def _calls_of(self, layout: Layout) -> dict[str, LaidCall]:
        """A layout's call sites by name."""
        calls = self._calls.get(id(layout))
        if calls is None:
            calls = self._calls[id(layout)] = {call.site: call for call in layout.calls}
        return calls

    def weight_digest(self, name: str) -> str:
        """Content hash of a weight, hexadecimal."""
        return self._tensors.weight_digest(name)

    def verify(self) -> int:
        """Check every chunk against its hash, and that every test's tensors lie in chunks.

        Reads the complete suite, one chunk at a time, and returns the number of chunks.

        Raises
        ------
        InputError
            If anything is damaged.
        """
        for run in self.runs(Filters()):
            self._tensors.check_places(run)
        return self._tensors.verify()

    def summary(self) -> SuiteSummary:
        """Tests per operator and entry, bytes, and the deduplication factor."""
        counts: Counter[tuple[str, str]] = Counter()
        steps: Counter[int] = Counter()
        prompts: Counter[int] = Counter()
        runs = 0
        tensor_bytes = 0
        bytes_of: dict[int, int] = {}
        for run in self.runs(Filters()):
            runs += 1
            layout = run.layout
            counts.update((call.operator, layout.entry) for call in layout.calls)
            steps[run.step] += len(layout.calls)
            prompts[run.prompt] += len(layout.calls)
            if id(layout) not in bytes_of:
                sizes = [dtype(v.dtype).nbytes(prod(v.shape)) for v in layout.values]
                bytes_of[id(layout)] = sum(
                    sizes[index] for call in layout.calls for index in call.arguments
                )
            tensor_bytes += bytes_of[id(layout)]
        return SuiteSummary(
            tests=counts.total(),
            tests_per_operator=dict(counts),
            tests_per_step=dict(sorted(steps.items())),
            tests_per_prompt=dict(sorted(prompts.items())),
            prompts=len(self.prompts),
            runs=runs,
            tensor_bytes=tensor_bytes,
            stored=self._tensors.stored(),
        )

    @cached_property
    def _parameters(self) -> dict[str, _Parameters]:
        rows = self._connection.execute("SELECT name, parameters FROM operator")
        return {name: unpack_parameters(blob) for name, blob in rows}

    def _test(self, run: RunRecord, call: LaidCall) -> CarvedTest:
        parameters = self._parameters[call.operator]

        def records(roles: tuple[Role, ...]) -> tuple[TensorRecord, ...]:
            return tuple(
                TensorRecord(
                    name, role, v.name, v.shape, v.dtype, v.lifetime, self._tensors, run, index
                )
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
