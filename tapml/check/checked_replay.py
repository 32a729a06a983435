"""Replays the tests of a suite, or of a repro folder, on a checker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tapml.check.checker import Checker
from tapml.check.findings import Finding
from tapml.check.operator_check import (
    OPERATOR_SECONDS,
    CheckStatus,
    NotRun,
    OperatorCheck,
    check_tests,
)
from tapml.runs.wording import counted
from tapml.suite.selection import Filters
from tapml_targets.errors import CompileError, InputError
from tapml_targets.library import Library
from tapml_targets.target import Target

if TYPE_CHECKING:
    from tapml.compiler.compiler import Compiler
    from tapml.repro.folder import Repro
    from tapml.suite.suite import Suite

FORMAT: Final = "tapml-check/1"
_EVERYTHING: Final = Filters()


@dataclass(frozen=True)
class CheckReport:
    """The result of a checked replay.

    Attributes
    ----------
    subject
        The suite's or repro folder's path.
    simulator
        Name and version of the simulator.
    operators
        One report per operator with tests, in the plan's order.
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
        """``fail`` with findings; else ``not run`` if any operator was not checked."""
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
        """The report as text."""
        lines = [line for each in self.operators for line in operator_lines(each)]
        return [*lines, self.summary()]

    def summary(self) -> str:
        """Checked, found and omitted tests, in one line."""
        checked = sum(len(each.checked) for each in self.operators)
        missed = sum(len(each.not_run) for each in self.operators)
        same = sum(each.same_shape for each in self.operators)
        unchecked = sum(not each.checked for each in self.operators)
        left_out = [
            f"{same} not run, of shapes already checked" * (same > 0),
            f"{missed} not run for other reasons" * (missed > 0),
            f"{counted(unchecked, 'operator')} not checked" * (unchecked > 0),
        ]
        of = counted(len(self.operators), "operator")
        tests = ", ".join([f"{counted(checked, 'test')} of {of}", *filter(None, left_out)])
        return f"{self.simulator}: {counted(len(self.findings), 'finding')}; {tests}"


def operator_lines(report: OperatorCheck) -> list[str]:
    """One operator's part of the report as text."""
    count = len(report.findings)
    what = counted(count, "finding") if count else f"{counted(len(report.checked), 'test')} checked"
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
    """Replay the tests of a suite that match `filters` on the simulator.

    Parameters
    ----------
    suite
        Tests and operator definitions; neither model nor plan is needed.
    compiler
        Compiles operators without a Library in `libraries`.
    target
        The device that the kernels are compiled for.
    checker
        From :func:`tapml.check.checker.open_checker`.
    filters
        Filters on tests.
    seconds
        Time for each operator; see :func:`tapml.check.operator_check.check_tests`.
    libraries
        Precompiled Libraries, by operator.
    on_operator
        Called with each operator's report.

    Raises
    ------
    InputError
        If the checker is another platform's.
    SetupError
        If the simulator's process cannot be restarted.
    """
    _check_platform(target.platform, checker)
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
    """Replay a repro folder's test, with its current kernels, on the simulator.

    Raises
    ------
    InputError
        If the checker is another platform's.
    SetupError
        If the simulator's process cannot be restarted.
    """
    _check_platform(repro.library.target, checker)
    report = check_tests(
        repro.operator, [repro.case], repro.library, checker, seconds=seconds, origins=repro.origins
    )
    return CheckReport(subject, simulator_of(checker), (report,))


def _check_platform(platform: str, checker: Checker) -> None:
    if platform != checker.platform:
        raise InputError(
            f"{checker.tool.NAME} runs kernels for {checker.platform}, not those for {platform}: "
            f"give a device of {checker.platform}"
        )


def simulator_of(checker: Checker) -> str:
    """Name and version of the simulator."""
    device = checker.session.device
    name = f"{checker.tool.NAME} on {device.name}" if checker.tool.ON_DEVICES else device.name
    return f"{name} ({device.driver_version.partition(';')[0]})"
