"""Runs operators on several implementations, with the same Libraries and tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from tapml.compiler.symbol_ranges import SymbolRanges
from tapml.devices.reach import is_remote
from tapml.devices.self_test import session_self_test
from tapml.failures.diagnosis import Diagnosis
from tapml.matrix.comparing import Comparison, ImplementationResult
from tapml.matrix.compiling import refusal
from tapml.matrix.implementation import Column, exit_code_of
from tapml.matrix.report import Cell, Row
from tapml.oracles.carved_case import CarvedCase
from tapml.plan.graph_plan import Operator
from tapml.replaying.failure_text import NO_TEST, UNBUILT
from tapml.replaying.pace import Pace, Pacer
from tapml.replaying.replayer import Expecting, replay
from tapml.replaying.results import (
    OperatorVerdict,
    ReplayResult,
    more_severe,
    summarise,
)
from tapml.replaying.run import RUNS
from tapml.verdicts.expectation import Expectation
from tapml.verdicts.policy import Policy
from tapml.verdicts.verdict import Cause, Verdict, cause_of, failed, not_run
from tapml_rpc.client import Session
from tapml_rpc.remote import RemoteLibrary
from tapml_targets.errors import CompileError, DeviceLostError, TapmlError
from tapml_targets.library import Library
from tapml_targets.self_test.facts import SelfTest
from tapml_targets.self_test.known import self_test

if TYPE_CHECKING:
    from tapml.execute.interfaces import Reference

Diagnose: TypeAlias = Callable[[Operator, Library, ReplayResult, Column], Diagnosis | None]


class Judging(Expecting, Protocol):
    """The oracle of a matrix: an Oracle, or a Probing."""


@contextmanager
def opened(columns: Sequence[Column]) -> Iterator[None]:
    """Open the columns that were not opened yet; close all of them at the end.

    One that could not be opened stays so: whoever opens the columns again asks it no second time.

    Raises InputError as :meth:`~tapml.matrix.implementation.Column.open` does.
    """
    try:
        for column in columns:
            if column.session is None and column.error is None:
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
        Open columns; those that could not be opened, or are lost, are "not run".
    oracle, policy
        For comparing each implementation with float64, and the implementations with each other.
    runs
        How often each test runs on each implementation.
    ranges
        Ranges of the shape symbols, for the check of limits.
    diagnose
        Diagnoses the failure of an operator.
    pace, reference
        The longest that an operator may take, and what gives the reference; None for no bound.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        oracle: Judging,
        policy: Policy,
        *,
        runs: int = RUNS,
        ranges: SymbolRanges | None = None,
        diagnose: Diagnose | None = None,
        pace: Pace | None = None,
        reference: Callable[[], Reference] | None = None,
    ) -> None:
        self._ranges, self._diagnose = ranges, diagnose
        self._pace, self._reference = pace, reference
        self._pacers: dict[str, Pacer] = {}
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
        """Run the tests of one operator on each column; `libraries` are by platform."""
        runs = {label: _Run(column) for label, column in self._columns.items()}
        for run in runs.values():
            run.begin(operator, libraries, self._ranges)
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
                    ImplementationResult.of(self._who[label], result)
                    for label, result in results.items()
                    if result is not None and runs[label].platform == platform
                ]
                comparison.add(test.id, ran, self._expecting(test), self._appealing(test))
        for platform, comparison in comparisons.items():
            self._compare_ends(comparison, [r for r in runs.values() if r.platform == platform])
        cells = {
            label: run.end(operator, self._keeping_pace(run, operator, libraries))
            for label, run in runs.items()
        }
        if self._diagnose is not None:
            for label, run in runs.items():
                cells[label] = self._diagnosed(cells[label], run, operator, libraries)
        return Row(
            operator.name,
            sources,
            cells,
            tuple(c.difference for c in comparisons.values() if c.difference is not None),
            {name: c.bits for name, c in comparisons.items() if len(c.bits.labels) > 1},
        )

    def _keeping_pace(
        self, run: _Run, operator: Operator, libraries: Mapping[str, Library | CompileError]
    ) -> Callable[[OperatorVerdict], OperatorVerdict]:
        """What makes a verdict of slowness."""
        if run.remote is None or self._pace is None or self._reference is None:
            return lambda verdict: verdict
        library = libraries[run.platform]
        assert isinstance(library, Library)  # noqa: S101 - it was uploaded
        pacer = self._pacers.get(run.column.label)
        if pacer is None or pacer.session is not run.session:
            pacer = self._pacers[run.column.label] = Pacer(self._pace, run.session, self._reference)
        return partial(pacer.judged, operator, library)

    def _diagnosed(
        self,
        cell: Cell,
        run: _Run,
        operator: Operator,
        libraries: Mapping[str, Library | CompileError],
    ) -> Cell:
        if run.failing is None or cell.status not in ("fail", "degraded"):
            return cell
        library = libraries[run.platform]
        assert self._diagnose is not None  # noqa: S101 - asked above
        assert isinstance(library, Library)  # noqa: S101 - it ran
        found = self._diagnose(operator, library, run.failing, run.column)
        return replace(cell, diagnosis=found)

    def _replay(self, run: _Run, operator: Operator, test: CarvedCase) -> ReplayResult | None:
        column = run.column
        assert run.remote is not None  # noqa: S101 - asked of those alone
        try:
            result = replay(
                operator, test, run.remote, run.session, self._oracle, self._policy,
                memory=column.memory, runs=self._runs, keep_passing=True,
            )  # fmt: skip
        except DeviceLostError as error:
            run.lost(error, f"the device was lost in test {test.id}: {error}")
            return None
        except (TapmlError, OSError) as error:
            run.unreachable(f"in test {test.id}: {error}", exit_code_of(error))
            return None
        run.add(result)
        return result

    def _compare_ends(self, comparison: Comparison, runs: Sequence[_Run]) -> None:
        """Compare outcomes without outputs: a kernel may build on some implementations only."""
        if any(run.failure for run in runs):
            ran = [ImplementationResult(self._who[run.column.label], run.outcome()) for run in runs]
            comparison.add("", ran, lambda: None, lambda: None)

    def _expecting(self, test: CarvedCase) -> Callable[[], Expectation | None]:
        return lambda: _or_none(lambda: self._oracle.expect(test))

    def _appealing(self, test: CarvedCase) -> Callable[[], Expectation | None]:
        return lambda: _or_none(lambda: self._oracle.appeal(test))

    def _known(self, label: str) -> SelfTest | None:
        """The self-test of a column's device; None for a lost remote device."""
        column = self._columns[label]
        if not is_remote(label):
            return self_test(column.description)
        return None if column.session is None else session_self_test(column.session)


class _Run:
    """One operator on one column."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self.remote: RemoteLibrary | None = None
        self.failure: Verdict | None = None
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

    @property
    def failing(self) -> ReplayResult | None:
        """Its worst test, if that failed."""
        if self._worst is None or self._worst.verdict.status in ("pass", "not run"):
            return None
        return self._worst

    def begin(
        self,
        operator: Operator,
        libraries: Mapping[str, Library | CompileError],
        ranges: SymbolRanges | None,
    ) -> None:
        """Check the kernels against the limits and upload them."""
        if self.column.session is None:
            return
        library = libraries[self.platform]
        problem = refusal(library, self.column, ranges)
        if problem or isinstance(library, CompileError):
            is_kernel = isinstance(library, Library)
            self.failure = failed(Cause.LIMIT if is_kernel else Cause.NO_KERNEL, problem)
            return
        try:
            self.remote = self.column.session.upload(library)
        except CompileError as error:
            self.failure = failed(cause_of(error), f"{UNBUILT}{error}")
        except DeviceLostError as error:
            self.lost(error, f"the device was lost building {operator.name}: {error}")
        except (TapmlError, OSError) as error:
            self.unreachable(f"building {operator.name}: {error}", exit_code_of(error))

    def add(self, result: ReplayResult) -> None:
        self._worst = more_severe(self._worst, result)
        self._results.append(replace(result, actual=()))

    def lost(self, error: DeviceLostError, why: str) -> None:
        """The operator crashed the device: it fails, and the next one gets a new session."""
        self.failure, self.remote = failed(cause_of(error), why), None
        self.column.lose(why, error.exit_code)

    def unreachable(self, why: str, exit_code: int) -> None:
        """The device was lost for another reason: not run, and a new session for the next one."""
        self._absent, self.remote = why, None
        self.column.missed = exit_code
        self.column.lose(why, exit_code)

    def outcome(self) -> Verdict:
        """The verdict if no test result decides it."""
        if self._absent:
            return not_run(Cause.NO_DEVICE, self._absent)
        if self.failure is not None:
            return self.failure
        return self._worst.verdict if self._worst is not None else not_run(Cause.NO_TEST, NO_TEST)

    def end(self, operator: Operator, judged: Callable[[OperatorVerdict], OperatorVerdict]) -> Cell:
        """The operator's cell in this column; `judged` changes the verdict of its tests."""
        if self._absent:
            return Cell.of(self.outcome(), len(self._results))
        if self.failure is not None:
            return Cell.of(self.failure, len(self._results))
        try:
            changed = self.column.memory.changed_weights()
            verdict = judged(summarise(operator, self._results, self._worst, changed))
        except DeviceLostError as error:
            self.lost(error, f"the device was lost: {error}")
            return Cell.of(self.outcome(), len(self._results))
        except (TapmlError, OSError) as error:
            self.unreachable(str(error), exit_code_of(error))
            return Cell.of(self.outcome(), len(self._results))
        return Cell.of(verdict, len(self._results))


def _kernels(library: Library | CompileError, operator: Operator) -> tuple[str, ...]:
    if isinstance(library, CompileError):
        return (operator.name,)
    return tuple(library.kernels)


def _or_none(expect: Callable[[], Expectation]) -> Expectation | None:
    try:
        return expect()
    except CompileError:
        return None
