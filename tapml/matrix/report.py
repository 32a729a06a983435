"""The report of a matrix: operators by implementations, and their differences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tapml.durable.strict_json import to_strict
from tapml.failures.diagnosis import Diagnosis
from tapml.matrix.comparing import Bits
from tapml.matrix.finding import Difference
from tapml.matrix.implementation import Implementation
from tapml.replaying.results import OperatorVerdict
from tapml.verdicts.verdict import Cause, Status, Verdict, worse
from tapml_targets.errors import EXIT_MISMATCH

FORMAT: Final = "tapml-matrix/2"
END_TO_END: Final = "end to end"


@dataclass(frozen=True)
class Cell:
    """One operator on one implementation.

    Attributes
    ----------
    status
        ``pass``, ``degraded``, ``fail`` or ``not run``.
    worst_ratio
        Largest error over (sensitivity + ulp).
    tests
        Tests replayed.
    reason
        The reason, with numbers.
    cause
        The cause of the status.
    diagnosis
        Inner step, positions and cause of a failure; None on a pass or without diagnosis.
    """

    status: Status
    worst_ratio: float
    tests: int
    reason: str
    cause: Cause
    diagnosis: Diagnosis | None = None

    @classmethod
    def of(cls, verdict: OperatorVerdict | Verdict, tests: int) -> Cell:
        """The cell of a verdict on an operator or the complete model."""
        return cls(verdict.status, verdict.worst_ratio, tests, verdict.reason, verdict.cause)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        found = self.diagnosis
        numbers = {name: to_strict(value) for name, value in vars(self).items()}
        return numbers | {"diagnosis": None if found is None else found.to_json()}


@dataclass(frozen=True)
class Row:
    """One operator on all implementations, or the complete model.

    Attributes
    ----------
    operator
        Its name.
    sources
        Lines of the model it comes from.
    cells
        Cells by implementation.
    differences
        Differences between implementations of the same kernels, at most one per platform.
    bits
        Bitwise comparisons by platform; they do not affect the status.
    """

    operator: str
    sources: tuple[str, ...]
    cells: Mapping[str, Cell]
    differences: tuple[Difference, ...] = ()
    bits: Mapping[str, Bits] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        """The worst status of its cells."""
        status: Status = "pass"
        for cell in self.cells.values():
            status = worse(status, cell.status)
        return status

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "operator": self.operator,
            "sources": list(self.sources),
            "cells": {label: cell.to_json() for label, cell in self.cells.items()},
            "differences": [each.to_json() for each in self.differences],
            "bits": {platform: bits.to_json() for platform, bits in self.bits.items()},
        }


@dataclass(frozen=True)
class MatrixReport:
    """The result of :func:`tapml.validate` on several implementations.

    Attributes
    ----------
    title
        Name of what was validated.
    reference
        Name of the reference device.
    implementations
        The columns, in the order in which they were named.
    rows
        One per operator, in graph order.
    end_to_end
        The row of the complete model or module; None if only operators ran.
    facts
        Policy, versions and hashes.
    lost_with
        Exit code of the error that lost a device, or kept it from being opened; 0 if none.
    """

    title: str
    reference: str
    implementations: tuple[Implementation, ...]
    rows: tuple[Row, ...]
    end_to_end: Row | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    lost_with: int = 0

    @property
    def all_rows(self) -> tuple[Row, ...]:
        """The operators' rows, and the complete model's if there is one."""
        return self.rows if self.end_to_end is None else (*self.rows, self.end_to_end)

    @property
    def status(self) -> Status:
        """The worst of all verdicts; ``not run`` if a column was not run."""
        status: Status = "pass" if self.rows else "not run"
        for row in self.all_rows:
            status = worse(status, row.status)
        return status

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Implementation differences, in graph order."""
        return tuple(each for row in self.all_rows for each in row.differences)

    @property
    def passed(self) -> bool:
        """Whether everything passed on all implementations and none of them differ."""
        return self.status == "pass" and not self.differences

    @property
    def exit_code(self) -> int:
        """0 for a pass, 1 for a failure or difference, else the exit code of a lost device."""
        if self.passed:
            return 0
        wrong = self.differences or self.status in ("fail", "degraded")
        return EXIT_MISMATCH if wrong or not self.lost_with else self.lost_with

    def status_of(self, label: str) -> Status:
        """The worst verdict of one implementation."""
        status: Status = "pass" if self.rows else "not run"
        for row in self.all_rows:
            status = worse(status, row.cells[label].status)
        return status

    @property
    def headline(self) -> str:
        """The result in one line."""
        count = len(self.differences)
        plural = "difference" if count == 1 else "differences"
        found = f"{count} implementation {plural}" if count else "no two implementations differ"
        ran = [each.platform for each in self.implementations if each.platform]
        if len(self.implementations) == 1:
            return f"{self.status}: {self.title} on {self.implementations[0].label}"
        if len(ran) < 2:
            found = "nothing to compare: fewer than two implementations ran"
        elif len(set(ran)) == len(ran):
            found = "nothing to compare: each has a different platform"
        many = len(self.implementations)
        return f"{self.status}: {self.title} on {many} devices; {found}"

    def to_json(self) -> dict[str, Any]:
        """Plain data for a strict JSON file, format ``tapml-matrix/2``."""
        return {
            "format": FORMAT,
            "title": self.title,
            "status": self.status,
            "passed": self.passed,
            "headline": self.headline,
            "reference": self.reference,
            "implementations": [
                each.to_json() | {"status": self.status_of(each.label), "made_of": each.made_of}
                for each in self.implementations
            ],
            "operators": [row.to_json() for row in self.rows],
            "end_to_end": None if self.end_to_end is None else self.end_to_end.to_json(),
            "differences": [each.to_json() for each in self.differences],
            **self.facts,
        }

    def __str__(self) -> str:
        return "\n".join(lines_of(self))


def lines_of(report: MatrixReport) -> Iterator[str]:
    """The report as lines: implementations, table, failures, differences, headline."""
    for line in _lines(report):
        # A device's texts may contain control characters.
        yield "".join(each if each.isprintable() or each in "\n\t" else "?" for each in line)


def _lines(report: MatrixReport) -> Iterator[str]:
    width = max(len(each.label) for each in report.implementations)
    for each in report.implementations:
        said = each.made_of or "not opened"
        yield f"{each.label:<{width}}  {said}"
        if each.problem:
            yield f"{'':<{width}}  not run: {_first_line(each.problem)}"
    yield ""
    yield from _table(report)
    for row in report.all_rows:
        yield from _reasons(row)
    for difference in report.differences:
        yield ""
        yield from difference.lines()
    yield ""
    yield report.headline


def _table(report: MatrixReport) -> Iterator[str]:
    several = len(report.implementations) > 1
    heads = ["operator", *(each.label for each in report.implementations)]
    heads += ["between them"] * several
    rows = [heads]
    for row in report.all_rows:
        cells = [_cell(row.cells[each.label]) for each in report.implementations]
        rows.append([row.operator, *cells, *[_between(row)] * several])
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    for texts in rows:
        padded = [f"{text:<{width}}" for text, width in zip(texts, widths, strict=True)]
        yield "  ".join(padded).rstrip()


def _cell(cell: Cell) -> str:
    return cell.status if cell.status == "not run" else f"{cell.status} {cell.worst_ratio:.3g}"


def _between(row: Row) -> str:
    """Whether the implementations agree, and how closely."""
    if row.differences:
        return "; ".join(f"DIFFERENT: {each.sides}" for each in row.differences)
    said = []
    for bits in row.bits.values():
        if not bits.pairs:
            said.append("equal bits")
        elif 0 < bits.max_ulps < math.inf:
            said.append(f"agree within {bits.max_ulps:,.0f} ulp")
        else:
            said.append("agree")
    return "; ".join(said)


def _reasons(row: Row) -> Iterator[str]:
    for label, cell in row.cells.items():
        if cell.status in ("fail", "degraded"):
            yield f"{row.operator} on {label}: {cell.status}: {_first_line(cell.reason)}"
            yield from (f"  {line}" for line in (cell.diagnosis.lines() if cell.diagnosis else ()))


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""
