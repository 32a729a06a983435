"""Runs operators on several implementations: the same Libraries, the same tests, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import Final, Protocol

from tapml.carving.lost import UNBUILT
from tapml.carving.replay import Expecting, replay
from tapml.carving.replay_results import (
    OperatorVerdict,
    ReplayResult,
    graver,
    summarise,
    unbuilt,
)
from tapml.carving.replay_run import RUNS
from tapml.compare.expectation import Expectation
from tapml.compare.oracle import CarvedCase
from tapml.compare.policy import Policy
from tapml.compare.verdict import Verdict, not_run
from tapml.graph.plan import Operator
from tapml.matrix.comparing import Comparison, Ran
from tapml.matrix.compiling import refusal
from tapml.matrix.implementation import Column, exit_code_of
from tapml.matrix.report import Cell, Row
from tapml_rpc.client import Session
from tapml_rpc.known_self_test import session_self_test
from tapml_rpc.reach import is_remote
from tapml_rpc.remote import RemoteLibrary
from tapml_targets.errors import CompileError, DeviceLostError, TapmlError
from tapml_targets.library import Library
from tapml_targets.self_test.facts import SelfTest
from tapml_targets.self_test.known import usual_self_test

_NO_TEST: Final = "there is no test of it"


class Judging(Expecting, Protocol):
    """What a matrix asks of an oracle: an Oracle, or one that knows probes as well."""


@contextmanager
def opened(columns: Sequence[Column]) -> Iterator[None]:
    """Open every column that can be opened; close them at the end.

    Raises
    ------
    InputError
        As :meth:`~tapml.matrix.implementation.Column.open` does.
    """
    try:
        for column in columns:
            column.open()
        yield
    finally:
        for column in columns:
            with suppress(TapmlError, OSError):
                column.close()


class Matrix:
    """Runs operators over the columns.

    Parameters
    ----------
    columns
        Open; those that could not be opened, or are lost, are "not run".
    oracle, policy
        What each is held against, and two of them against one another.
    runs
        How often each test runs on each.
    """

    def __init__(
        self, columns: Sequence[Column], oracle: Judging, policy: Policy, *, runs: int = RUNS
    ) -> None:
        self._columns = {column.label: column for column in columns}
        self._oracle, self._policy, self._runs = oracle, policy, runs
        self._who = {each.label: each.implementation() for each in columns}
        self._self_test = cache(self._known)

    def operator(
        self,
        operator: Operator,
        tests: Iterable[CarvedCase],
        libraries: Mapping[str, Library | CompileError],
        sources: tuple[str, ...] = (),
    ) -> Row:
        """Run the tests of one operator on every column, test by test.

        Parameters
        ----------
        libraries
            The operator's, by platform.
        """
        runs = {label: _Run(column) for label, column in self._columns.items()}
        for run in runs.values():
            run.begin(operator, libraries)
        comparisons = {
            platform: Comparison(
                operator, _kernels(library, operator), platform, self._policy, self._self_test
            )
            for platform, library in libraries.items()
        }
        for test in tests:
            results = {
                label: self._replay(run, operator, test)
                for label, run in runs.items()
                if run.remote is not None
            }
            for platform, comparison in comparisons.items():
                ran = [
                    Ran.of(self._who[label], result)
                    for label, result in results.items()
                    if result is not None and runs[label].platform == platform
                ]
                # Each test's: the loop is over before another is asked for.
                comparison.add(test.id, ran, self._expecting(test), self._appealing(test))
        for platform, comparison in comparisons.items():
            self._compare_ends(comparison, [r for r in runs.values() if r.platform == platform])
        cells = {label: run.end(operator) for label, run in runs.items()}
        return Row(
            operator.name,
            sources,
            cells,
            tuple(c.difference for c in comparisons.values() if c.difference is not None),
            {name: c.bits for name, c in comparisons.items() if len(c.bits.labels) > 1},
        )

    def _replay(self, run: _Run, operator: Operator, test: CarvedCase) -> ReplayResult | None:
        column = run.column
        assert run.remote is not None  # noqa: S101 - asked of those alone
        try:
            result = replay(
                operator, test, run.remote, run.session, self._oracle, self._policy,
                memory=column.memory, runs=self._runs, keep_passing=True,
            )  # fmt: skip
        except DeviceLostError as error:
            run.lost(f"the device was lost in test {test.id}: {error}", error.exit_code)
            return None
        except (TapmlError, OSError) as error:
            run.unreachable(f"in test {test.id}: {error}", exit_code_of(error))
            return None
        run.add(result)
        return result

    def _compare_ends(self, comparison: Comparison, runs: Sequence[_Run]) -> None:
        """What has no outputs differs as well: a kernel builds here and not there."""
        if any(run.failure for run in runs):
            ran = [Ran(self._who[run.column.label], run.outcome()) for run in runs]
            comparison.add("", ran, lambda: None, lambda: None)

    def _expecting(self, test: CarvedCase) -> Callable[[], Expectation | None]:
        return lambda: _or_none(lambda: self._oracle.expect(test))

    def _appealing(self, test: CarvedCase) -> Callable[[], Expectation | None]:
        return lambda: _or_none(lambda: self._oracle.appeal(test))

    def _known(self, label: str) -> SelfTest | None:
        """What a column's device was measured to do; one elsewhere that is lost cannot be asked."""
        column = self._columns[label]
        if not is_remote(label):
            return usual_self_test(column.description)
        return None if column.session is None else session_self_test(column.session)


class _Run:
    """One column on one operator."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self.remote: RemoteLibrary | None = None
        self.failure = ""
        self._results: list[ReplayResult] = []
        self._worst: ReplayResult | None = None
        self._absent = "" if column.session is not None else column.problem

    @property
    def platform(self) -> str:
        return self.column.platform

    @property
    def session(self) -> Session:
        assert self.column.session is not None  # noqa: S101 - a Library was uploaded to it
        return self.column.session

    def begin(self, operator: Operator, libraries: Mapping[str, Library | CompileError]) -> None:
        """Hold the kernels against the limits and upload them."""
        if self.column.session is None:
            return
        library = libraries[self.platform]
        problem = refusal(library, self.column)
        if problem or isinstance(library, CompileError):
            self.failure = problem
            return
        try:
            self.remote = self.column.session.upload(library)
        except CompileError as error:
            self.failure = f"{UNBUILT}{error}"
        except DeviceLostError as error:
            self.lost(f"the device was lost building {operator.name}: {error}", error.exit_code)
        except (TapmlError, OSError) as error:
            self.unreachable(f"building {operator.name}: {error}", exit_code_of(error))

    def add(self, result: ReplayResult) -> None:
        self._worst = graver(self._worst, result)
        self._results.append(replace(result, actual=()))

    def lost(self, why: str, exit_code: int) -> None:
        """The operator took the device down: its failure, and a new device for the next."""
        self.failure, self.remote = why, None
        self.column.lose(why, exit_code)

    def unreachable(self, why: str, exit_code: int) -> None:
        """What went wrong says nothing about a kernel: not run, and a new session for the next."""
        self._absent, self.remote = why, None
        self.column.missed = exit_code
        self.column.lose(why, exit_code)

    def outcome(self) -> Verdict:
        """What became of it where no test may say so."""
        if self._absent:
            return not_run(self._absent)
        if self.failure:
            return Verdict("fail", 0.0, (), self.failure, "target")
        return self._worst.verdict if self._worst is not None else not_run(_NO_TEST)

    def end(self, operator: Operator) -> Cell:
        """Its cell of the row."""
        if self._absent:
            return Cell("not run", 0.0, len(self._results), self._absent)
        if self.failure:
            verdict: OperatorVerdict = unbuilt(operator, self.failure)
            return Cell.of(verdict, len(self._results))
        changed: Sequence[str] = ()
        try:
            changed = self.column.memory.changed_weights()
        except DeviceLostError as error:
            self.lost(f"the device was lost: {error}", error.exit_code)
            return Cell.of(unbuilt(operator, self.failure), len(self._results))
        except (TapmlError, OSError) as error:
            self.unreachable(str(error), exit_code_of(error))
            return Cell("not run", 0.0, len(self._results), self._absent)
        return Cell.of(summarise(operator, self._results, self._worst, changed), len(self._results))


def _kernels(library: Library | CompileError, operator: Operator) -> tuple[str, ...]:
    if isinstance(library, CompileError):
        return (operator.name,)
    return tuple(library.kernels)


def _or_none(expect: Callable[[], Expectation]) -> Expectation | None:
    try:
        return expect()
    except CompileError:
        return None
