"""Runs mutants that changed no byte on the platform's checker, such as Oclgrind."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from scripts.mutants.scoring import Score
from scripts.mutants.subject import Subject, spread
from tapml.check.checker import Checker, open_checker
from tapml.check.operator_check import check_tests
from tapml_targets.library import Library

# Mistakes of these kinds may be wrong accesses without any effect on outputs.
_IN_MEMORY: Final = frozenset(
    {
        "index shift", "bound off by one", "dropped guard", "dropped barrier", "reduction start",
        "transposed load", "wrong stride", "skipped tail", "stale output", "wrong cast",
        "halved wave",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Report:
    """The simulator's report on a Library: its findings, and why tests did not run."""

    findings: frozenset[str]
    not_run: tuple[str, ...]


class Checking:
    """Compares the simulator's reports on mutants with those on right kernels."""

    def __init__(self, subject: Subject, checker: Checker) -> None:
        self._subject = subject
        self._checker = checker
        self._clean: dict[str, Report] = {}

    def check(self, scores: Iterable[Score], seconds: float) -> Iterator[Score]:
        """The scores, updated if the simulator distinguishes a mutant from the right kernel.

        The shortest kernels come first. Scores name mutants not reached within `seconds`, or too
        slow for the simulator.
        """
        begun = time.monotonic()
        for score in sorted(scores, key=self._length):
            silent = score.outcome in ("equivalent", "missed")
            if not (silent and score.mutant.site.kind in _IN_MEMORY):
                yield score
            elif time.monotonic() - begun > seconds:
                yield replace(score, unchecked="no time was left for it")
            else:
                yield self._checked(score)

    def clean_findings(self) -> dict[str, frozenset[str]]:
        """What the checker reports on right kernels, by operator; nothing, if all is well."""
        for operator, library in self._subject.libraries.items():
            if operator not in self._clean:
                self._clean[operator] = self._report(operator, library)
        return {name: report.findings for name, report in self._clean.items() if report.findings}

    def _length(self, score: Score) -> int:
        library = self._subject.libraries[score.mutant.operator]
        return sum(len(module.code) for module in library.modules)

    def _checked(self, score: Score) -> Score:
        operator = score.mutant.operator
        right = self._subject.libraries[operator]
        if operator not in self._clean:
            self._clean[operator] = self._report(operator, right)
        clean, wrong = self._clean[operator], self._report(operator, score.mutant.site.apply(right))
        found = wrong.findings - clean.findings
        if found:
            return replace(
                score,
                outcome="detected",
                observed=score.observed or f"the report of {self._checker.tool.NAME}",
                found_by=self._checker.tool.NAME,
                reason="; ".join(sorted(found)),
            )
        return replace(score, unchecked="; ".join(dict.fromkeys(clean.not_run + wrong.not_run)))

    def _report(self, operator: str, library: Library) -> Report:
        """The findings on the first test and the last."""
        subject = self._subject
        tests = spread(subject.tests[operator], 2)
        result = check_tests(subject.operators[operator], tests, library, self._checker)
        found = {
            f"{each.kind} at line {each.line}"
            + (f" ({each.address_space} memory)" if each.address_space else "")
            for each in result.findings
        }
        # One shape of two is enough for a report.
        missed = () if result.checked else tuple(each.reason for each in result.not_run)
        return Report(frozenset(found), missed)


@contextmanager
def open_checking(subject: Subject) -> Iterator[Checking]:
    """Start the simulator.

    Raises
    ------
    SetupError
        If the platform's checker is not here.
    """
    with open_checker(next(iter(subject.libraries.values())).target) as checker:
        yield Checking(subject, checker)
