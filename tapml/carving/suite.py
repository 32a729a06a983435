"""A suite of carved tests on disk: a folder with an index and packs of chunks."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from tapml.carving.carved_test import CarvedTest, TensorRecord
from tapml.carving.definitions import unpack_operators, unpack_parameters
from tapml.carving.index import open_index, read_facts, unpack
from tapml.carving.layout import LaidCall, Layout
from tapml.carving.selection import Filters
from tapml.carving.suite_tensors import RunRecord, SuiteTensors
from tapml.carving.summary import SuiteSummary, summarize
from tapml.graph.plan import Operator
from tapml_targets.errors import InputError
from tapml_targets.library import Role

_Parameters: TypeAlias = tuple[tuple[str, Role], ...]
_SEARCHED: Final = 2000
"""Among so many tests the nearest id is looked for where one is mistyped."""


@dataclass(frozen=True)
class CarvedPrompt:
    """A prompt of the carve: its tokens, and its text where there was one."""

    token_ids: tuple[int, ...]
    text: str | None


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
        self._tensors = SuiteTensors(path, connection)
        self._last_run: tuple[str, RunRecord] | None = None
        # Layouts live as long as the suite.
        self._calls: dict[int, dict[str, LaidCall]] = {}
        self.facts: dict[str, Any] = read_facts(connection)

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the index. Arrays that were read stay valid."""
        self._tensors.close()
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

    def tests_of(self, operator: str, filters: Filters | None = None) -> Iterator[CarvedTest]:
        """The tests of one operator that pass `filters`, in the order in which they were carved."""
        filters = filters or Filters()
        for run in self.runs(filters):
            for call in run.layout.calls:
                if call.operator == operator and filters.site(operator, call.layer):
                    yield self._test(run, call)

    def tested_operators(self, filters: Filters | None = None) -> set[str]:
        """Names of the operators that have a test which passes `filters`."""
        filters = filters or Filters()
        return {
            call.operator
            for run in self.runs(filters)
            for call in run.layout.calls
            if filters.site(call.operator, call.layer)
        }

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
        """The runs that pass `filters`."""
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
        """The run of a place in an id; the last one is remembered, for tests come in order."""
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

        Reads the whole suite, a chunk at a time.

        Returns
        -------
        int
            Number of chunks.

        Raises
        ------
        InputError
            If anything is damaged.
        """
        for run in self.runs(Filters()):
            self._tensors.check_places(run)
        return self._tensors.verify()

    def summary(self) -> SuiteSummary:
        """Tests per operator and entry, bytes, and how often bytes are used."""
        return summarize(self, self._tensors.stored())

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
