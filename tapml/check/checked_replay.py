"""Replays the tests of a suite, or of a repro folder, on Oclgrind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tapml.carving.selection import Filters
from tapml.check.checker import Checker
from tapml.check.findings import Finding
from tapml.check.operator_check import (
    OPERATOR_SECONDS,
    CheckStatus,
    NotRun,
    OperatorCheck,
    check_tests,
)
from tapml_targets.errors import CompileError, InputError
from tapml_targets.library import Library
from tapml_targets.target import Target

if TYPE_CHECKING:
    from tapml.carving.repro_folder import Repro
    from tapml.carving.suite import Suite
    from tapml.compiler.compiler import Compiler

FORMAT: Final = "tapml-check/1"
PLATFORM: Final = "opencl"
_EVERYTHING: Final = Filters()


@dataclass(frozen=True)
class CheckReport:
    """What a checked replay found.

    Attributes
    ----------
    subject
        The suite's or repro folder's path.
    simulator
        Name and version of what ran it.
    operators
        One report per operator that has tests, in the plan's order.
    """

    subject: str
    simulator: str
    operators: tuple[OperatorCheck, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All faults."""
        return tuple(finding for each in self.operators for finding in each.findings)

    @property
    def status(self) -> CheckStatus:
        """``fail`` with findings; else ``not run`` where an operator was not checked at all."""
        statuses = {each.status for each in self.operators}
        if "fail" in statuses:
            return "fail"
        return "pass" if statuses == {"pass"} else "not run"

    def to_json(self) -> dict[str, Any]:
        """Plain data for a strict JSON file, format ``tapml-check/1``."""
        return {
            "format": FORMAT,
            "subject": self.subject,
            "simulator": self.simulator,
            "status": self.status,
            "operators": [each.to_json() for each in self.operators],
        }

    def lines(self) -> list[str]:
        """The report for people."""
        lines = [line for each in self.operators for line in operator_lines(each)]
        return [*lines, self.summary()]

    def summary(self) -> str:
        """What was checked, found and left out, in a line."""
        checked = sum(len(each.checked) for each in self.operators)
        missed = sum(len(each.not_run) for each in self.operators)
        same = sum(each.same_shape for each in self.operators)
        unchecked = sum(not each.checked for each in self.operators)
        left_out = [
            f"{same} not run, of shapes that were checked" * (same > 0),
            f"{missed} not run for other reasons" * (missed > 0),
            f"{unchecked} operators not checked" * (unchecked > 0),
        ]
        tests = ", ".join(
            [f"{checked} tests of {len(self.operators)} operators", *filter(None, left_out)]
        )
        return f"{self.simulator}: {len(self.findings)} findings; {tests}"


def operator_lines(report: OperatorCheck) -> list[str]:
    """One operator's part of the report for people."""
    count = len(report.findings)
    what = f"{count} findings" if count else f"{len(report.checked)} tests checked"
    lines = [f"{report.status}  {report.operator}  {what}, {report.seconds:.1f} s"]
    for finding in report.findings:
        lines.extend(f"  {line}" for line in finding.lines())
    lines.extend(f"  not run: {each.test}: {each.reason}" for each in report.not_run)
    lines.extend(f"  note: {note}" for note in report.notes)
    return lines


def replay_checked(
    suite: Suite,
    compiler: Compiler,
    target: Target,
    checker: Checker,
    filters: Filters = _EVERYTHING,
    *,
    seconds: float = OPERATOR_SECONDS,
    libraries: Mapping[str, Library] | None = None,
    on_operator: Callable[[OperatorCheck], None] | None = None,
) -> CheckReport:
    """Replay the tests of a suite that pass `filters` on the simulator.

    Parameters
    ----------
    suite
        Tests and operator definitions; neither model nor plan is needed.
    compiler
        Compiles what has no Library in `libraries`.
    target
        The device the kernels are for: what runs there is what is checked.
    checker
        From :func:`tapml.check.checker.open_checker`.
    filters
        Which tests.
    seconds
        Time for each operator; see :func:`tapml.check.operator_check.check_tests`.
    libraries
        Libraries to check in place of compiled ones, by operator.
    on_operator
        Called with each operator's report as soon as it stands.

    Raises
    ------
    InputError
        If the target is not OpenCL.
    SetupError
        If the simulator's process cannot be started again.
    """
    if target.platform != PLATFORM:
        raise InputError(
            f"Oclgrind runs OpenCL kernels; those for {target.platform} cannot be checked: "
            "give an OpenCL device"
        )
    given = dict(libraries or {})
    names = suite.tested_operators(filters)
    operators = [operator for name, operator in suite.operators.items() if name in names]
    compiled = compiler.compile_all([each for each in operators if each.name not in given], target)
    reports = []
    for operator in operators:
        library = given.get(operator.name) or next(compiled)[1]
        tests = suite.tests_of(operator.name, filters)
        if isinstance(library, CompileError):
            report = OperatorCheck(operator.name, not_run=(NotRun("", str(library)),))
        else:
            report = check_tests(operator, tests, library, checker, seconds=seconds)
        reports.append(report)
        if on_operator is not None:
            on_operator(report)
    return CheckReport(str(suite.path), simulator_of(checker), tuple(reports))


def check_repro(
    repro: Repro, subject: str, checker: Checker, *, seconds: float = OPERATOR_SECONDS
) -> CheckReport:
    """Replay a repro folder's test, with its kernels as they are now, on the simulator.

    Raises
    ------
    InputError
        If the kernels are not OpenCL's.
    SetupError
        If the simulator's process cannot be started again.
    """
    if repro.library.target != PLATFORM:
        raise InputError(
            f"Oclgrind runs OpenCL kernels; {subject} holds {repro.library.target} ones"
        )
    report = check_tests(
        repro.operator, [repro.case], repro.library, checker, seconds=seconds, origins=repro.origins
    )
    return CheckReport(subject, simulator_of(checker), (report,))


def simulator_of(checker: Checker) -> str:
    """Name and version of the simulator."""
    device = checker.session.device
    return f"{device.name} ({device.driver_version.partition(';')[0]})"
