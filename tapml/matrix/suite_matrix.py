"""The tests of a suite on several implementations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tapml.carving.probing import Probing
from tapml.carving.replay_repro import versions
from tapml.carving.replay_run import RUNS
from tapml.carving.selection import Filters
from tapml.carving.suite import Suite
from tapml.compare.expectation_store import store_of
from tapml.compare.oracle import Oracle
from tapml.compare.policy import Policy
from tapml.matrix.compiling import Libraries, compile_for_all, written_for
from tapml.matrix.implementation import Column
from tapml.matrix.report import MatrixReport, Row
from tapml.matrix.running import Matrix

if TYPE_CHECKING:
    from tapml.compiler.compiler import Compiler

_EVERYTHING: Final = Filters()
Whole = Callable[[Sequence[Column], Mapping[str, Libraries]], Row]
"""Runs the whole model on open columns, with the Libraries by platform."""


@dataclass(frozen=True)
class SuiteMatrix:
    """What a suite is run with.

    Attributes
    ----------
    suite
        Its tests.
    columns
        The devices, open.
    policy
        The limits.
    filters
        Which of the tests.
    kernels
        Folders of hand-written kernels, which take the compiled ones' place.
    runs
        How often each test runs on each device.
    """

    suite: Suite
    columns: Sequence[Column]
    policy: Policy
    filters: Filters = _EVERYTHING
    kernels: Sequence[Path] = ()
    runs: int = RUNS

    def run(
        self,
        compiler: Compiler,
        *,
        title: str = "",
        on_row: Callable[[Row], None] = lambda row: None,
        whole: Whole | None = None,
    ) -> MatrixReport:
        """Run all operators that have tests, then the whole model where it is given.

        Parameters
        ----------
        title
            What is validated; the suite's folder if empty.
        on_row
            Called with every operator as soon as it stands.
        """
        from tapml.compiler.reference import compile_reference
        from tapml.compiler.twin import compile_twins

        suite, columns, policy = self.suite, self.columns, self.policy
        tested = suite.tested_operators(self.filters)
        operators = [each for name, each in suite.operators.items() if name in tested]
        written = written_for(self.kernels, columns)
        rows: list[Row] = []
        with Oracle(suite.operators, compile_twins, policy, cache=store_of(suite.path)) as oracle:
            probing = Probing(oracle, lambda: compile_reference(suite.operators.values()))
            libraries = compile_for_all(compiler, operators, columns, written)
            matrix = Matrix(columns, probing, policy, runs=self.runs)
            for operator in operators:
                carved = suite.tests_of(operator.name, self.filters)
                compiled = {name: each[operator.name] for name, each in libraries.items()}
                rows.append(matrix.operator(operator, probing.tests(operator, carved), compiled))
                on_row(rows[-1])
        return MatrixReport(
            title=title or str(suite.path),
            reference="cpu",
            implementations=tuple(column.implementation() for column in columns),
            rows=tuple(rows),
            whole=None if whole is None else whole(columns, libraries),
            facts=self._facts(),
            lost_with=lost_with(columns),
        )

    def _facts(self) -> dict[str, Any]:
        return {
            "policy": self.policy.to_json(),
            "policy_hash": self.policy.hash,
            "versions": versions(),
        }


def lost_with(columns: Sequence[Column]) -> int:
    """The exit code of a device that is not there, or was not for an operator; 0 where all were."""
    return max((each.exit_code if each.problem else each.missed for each in columns), default=0)
