"""Replays carved tests of one operator on a checker, within a time limit."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from tapml.check.checked_run import run_checked
from tapml.check.checker import Checker
from tapml.check.findings import Finding, merged
from tapml.check.sample_tests import case_bytes, chosen
from tapml.oracles.carved_case import CarvedCase
from tapml.plan.graph_plan import Operator, Origin
from tapml_targets.errors import RemoteError
from tapml_targets.library import Library

OPERATOR_SECONDS: Final = 20.0

CheckStatus: TypeAlias = Literal["pass", "fail", "not run"]


@dataclass(frozen=True)
class NotRun:
    """A test that was not checked, and why."""

    test: str
    reason: str


@dataclass(frozen=True)
class OperatorCheck:
    """The results of one operator's tests on the simulator.

    Attributes
    ----------
    findings
        Its faults, without duplicates.
    checked
        Tests that finished.
    not_run
        Tests that did not, with the reasons.
    same_shape
        Number of tests omitted because another one has the same shapes.
    notes
        Other observations: outputs far from the carved ones.
    seconds
        Elapsed time.
    """

    operator: str
    findings: tuple[Finding, ...] = ()
    checked: tuple[str, ...] = ()
    not_run: tuple[NotRun, ...] = ()
    same_shape: int = 0
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def status(self) -> CheckStatus:
        """``fail`` with findings, ``not run`` if no test finished, else ``pass``."""
        if self.findings:
            return "fail"
        return "pass" if self.checked else "not run"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "operator": self.operator,
            "status": self.status,
            "findings": [finding.to_json() for finding in self.findings],
            "checked": list(self.checked),
            "not_run": [{"test": each.test, "reason": each.reason} for each in self.not_run],
            "same_shape": self.same_shape,
            "notes": list(self.notes),
            "seconds": self.seconds,
        }


def check_operator(
    operator: Operator,
    tests: Iterable[CarvedCase],
    library: Library,
    checker: Checker,
    *,
    origins: Sequence[Origin] = (),
) -> tuple[Finding, ...]:
    """The faults that the operator's tests show on the simulator.

    Raises
    ------
    RemoteError
        If there are none but a test could not be run. :func:`check_tests` returns details instead.
    """
    report = check_tests(operator, tests, library, checker, origins=origins)
    if not report.findings and (report.not_run or not report.checked):
        missed = "; ".join(f"{each.test}: {each.reason}" for each in report.not_run)
        raise RemoteError(f"{operator.name} was not checked: {missed or 'it has no test'}")
    return report.findings


def check_tests(
    operator: Operator,
    tests: Iterable[CarvedCase],
    library: Library,
    checker: Checker,
    *,
    seconds: float = OPERATOR_SECONDS,
    origins: Sequence[Origin] = (),
) -> OperatorCheck:
    """Replay an operator's tests, one of each shape, the smallest first.

    Parameters
    ----------
    tests
        Its carved tests.
    library
        The Library to check, with the operator, compiled for its intended device.
    checker
        From :func:`tapml.check.checker.open_checker`.
    seconds
        The first test always runs; further ones start if they are likely to finish in this time.
    origins
        The operator's origins in the model, added to every finding.

    Raises
    ------
    InputError
        If the Library does not have the operator, or a test does not match it.
    SetupError
        If the simulator's process cannot be restarted.
    """
    started = time.perf_counter()
    choice, same_shape = chosen(tests, operator)
    findings: list[Finding] = []
    checked: list[str] = []
    missed: list[NotRun] = []
    notes: list[str] = []
    seconds_per_byte = 0.0
    for test in choice:
        nbytes = max(1, case_bytes(test, operator))
        begun = time.perf_counter()
        likely = seconds_per_byte * nbytes
        if checked and begun - started + likely > seconds:
            reason = f"it may take {likely:.0f} s more; the limit per operator is {seconds:g} s"
            missed.append(NotRun(test.id, reason))
            continue
        run = run_checked(operator, test, library, checker)
        findings += run.findings
        notes += [f"{test.id}: {note}" for note in run.notes]
        if run.reason:
            missed.append(NotRun(test.id, run.reason))
        else:
            checked.append(test.id)
            seconds_per_byte = (time.perf_counter() - begun) / nbytes
    return OperatorCheck(
        operator.name,
        tuple(replace(finding, origins=tuple(origins)) for finding in merged(findings)),
        tuple(checked),
        tuple(missed),
        same_shape,
        tuple(notes),
        time.perf_counter() - started,
    )
