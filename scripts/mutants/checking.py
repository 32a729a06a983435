"""Oclgrind's report on a Library, in a form that two reports can be compared in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from scripts.mutants.scoring import Check, Report
from tapml.check.checker import open_checker
from tapml.check.operator_check import check_tests
from tapml.compare.oracle import CarvedCase
from tapml.graph.plan import Operator
from tapml_targets.library import Library


@contextmanager
def open_check() -> Iterator[Check]:
    """Start the simulator; what is given checks a Library on carved tests.

    Raises
    ------
    SetupError
        If there is no Oclgrind here.
    """
    with open_checker() as checker:

        def check(operator: Operator, tests: Sequence[CarvedCase], library: Library) -> Report:
            result = check_tests(operator, tests, library, checker)
            found = {
                f"{each.kind} of {each.address_space or 'the launch'} memory at line {each.line}"
                for each in result.findings
            }
            return Report(frozenset(found), tuple(each.reason for each in result.not_run))

        yield check
