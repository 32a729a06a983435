"""Validates a subject on devices: all run the same kernels and tests and are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tapml.devices.reach import is_remote
from tapml.failures.diagnosis import Diagnosis
from tapml.matrix.compiling import compile_for_all, written_for
from tapml.matrix.implementation import Column
from tapml.matrix.report import MatrixReport, Row
from tapml.matrix.running import Matrix, opened
from tapml.oracles.oracle import Oracle
from tapml.oracles.probing import Probing
from tapml.plan.graph_plan import Operator
from tapml.replaying.failure import Failure
from tapml.replaying.pace import Pace
from tapml.replaying.results import ReplayResult
from tapml.replaying.run import RUNS
from tapml.validation.subject import Subject
from tapml.verdicts.policy import Policy
from tapml_targets.driver_discovery import require_compiler
from tapml_targets.errors import InputError, SetupError, TapmlError
from tapml_targets.library import Library

if TYPE_CHECKING:
    from tapml.compiler.compiler import Compiler

# Later failures most likely have the same cause.
_DIAGNOSED: Final = 3
_DIAGNOSIS_SECONDS: Final = 30.0


def run_validation(
    subject: Subject,
    columns: Sequence[Column],
    compiler: Compiler,
    policy: Policy,
    *,
    kernels: Sequence[Path] = (),
    runs: int = RUNS,
    pace: Pace | None = None,
    diagnose: bool = False,
    on_row: Callable[[Row], None] = lambda row: None,
) -> MatrixReport:
    """Replay all operators on each device, then run the complete subject on each.

    A device that cannot be opened, or is lost for good, is "not run".

    Parameters
    ----------
    subject
        The module, suite or model to validate.
    columns
        The devices. They are opened if necessary, and closed at the end.
    policy
        The limits.
    kernels
        Folders of hand-written kernels, which replace compiled ones.
    runs
        How often each test runs on each device.
    pace
        The longest that an operator may take; None for no bound.
    diagnose
        Diagnose the first few failures, some seconds each.
    on_row
        Called with each operator's row.

    Raises
    ------
    InputError
        If a device is named twice.
    TapmlError
        If there is only one device, and it cannot be opened.
    """
    from tapml.compiler.twin import compile_twins

    definitions = {operator.name: operator for operator in subject.operators}
    with (
        opened(columns),
        Oracle(definitions, compile_twins, policy, cache=subject.store) as oracle,
    ):
        check_opened(columns)
        probing = Probing(oracle, subject.reference_module)
        written = written_for(kernels, columns)
        libraries = compile_for_all(compiler, subject.operators, columns, written)
        diagnosing = _Diagnosing(subject, compiler, oracle, policy) if diagnose else None
        matrix = Matrix(
            columns, probing, policy, runs=runs, ranges=subject.ranges, diagnose=diagnosing,
            pace=pace, reference=cache(subject.reference_module),
        )  # fmt: skip
        rows: list[Row] = []
        for operator in subject.operators:
            sources = tuple(origin.source for origin in subject.origins(operator.name))
            compiled = {name: each[operator.name] for name, each in libraries.items()}
            tests = subject.tests(operator, probing)
            rows.append(matrix.operator(operator, tests, compiled, sources))
            on_row(rows[-1])
        return MatrixReport(
            title=subject.title,
            reference=subject.reference,
            implementations=tuple(column.implementation() for column in columns),
            rows=tuple(rows),
            end_to_end=subject.end_to_end(columns, libraries),
            facts={"policy": policy.to_json(), "policy_hash": policy.hash, **subject.facts},
            lost_with=lost_with(columns),
        )


def check_opened(columns: Sequence[Column]) -> None:
    """Raise the error of the only device; with several devices, the report has it instead."""
    if len(columns) == 1 and columns[0].error is not None:
        raise columns[0].error


def leave_out_without(columns: Sequence[Column], dtype: str) -> None:
    """Leave out devices without a dtype or a compiler, before anything is made for them.

    Raises
    ------
    InputError
        If no device is left that has the dtype that was asked for.
    SetupError
        If this machine can compile kernels for no device.
    """
    left_out: list[TapmlError] = []
    for column in columns:
        if column.session is not None and (error := _unfit(column, dtype)) is not None:
            column.leave_out(error)
            left_out.append(error)
    if left_out and all(each.session is None for each in columns):
        raise left_out[0]


def _unfit(column: Column, dtype: str) -> TapmlError | None:
    if dtype == "float16" and dtype not in column.limits.features:
        return InputError(
            f"--dtype {dtype}: {column.label} ({column.description.name}) has no {dtype}; "
            "choose another device (see tapml devices) or --dtype float32"
        )
    try:
        if not is_remote(column.label):
            require_compiler(column.platform)
    except SetupError as error:
        return error
    return None


class _Diagnosing:
    """Diagnoses the first failures of a run, each in a new session."""

    def __init__(
        self, subject: Subject, compiler: Compiler, oracle: Oracle, policy: Policy
    ) -> None:
        self._subject, self._compiler, self._oracle = subject, compiler, oracle
        self._policy = policy
        self._count = 0

    def __call__(
        self, operator: Operator, library: Library, worst: ReplayResult, column: Column
    ) -> Diagnosis | None:
        if self._count == _DIAGNOSED:
            return None
        from tapml.diagnosis.in_subprocess import diagnose_in_subprocess

        self._count += 1
        failure = Failure(
            operator=operator,
            result=worst,
            library=library,
            device=column.description,
            expectation=self._oracle.appeal(worst.case),
            policy=self._policy,
            origins=self._subject.origins(operator.name),
        )
        found = diagnose_in_subprocess(
            failure,
            self._compiler,
            open_session=column.connect,
            budget_seconds=_DIAGNOSIS_SECONDS,
        )
        return found.diagnosis


def lost_with(columns: Sequence[Column]) -> int:
    """The exit code for devices that were unavailable, even for one operator; 0 if none were."""
    return max((each.exit_code if each.problem else each.missed for each in columns), default=0)
