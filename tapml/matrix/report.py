"""What a matrix found: operators by implementations, and where implementations differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tapml.carving.replay_results import OperatorVerdict
from tapml.compare.verdict import Status, worse
from tapml.matrix.comparing import Bits
from tapml.matrix.finding import Difference, plainly
from tapml.matrix.implementation import Implementation
from tapml_targets.errors import EXIT_MISMATCH

FORMAT: Final = "tapml-matrix/1"
WHOLE: Final = "the whole"


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
        Why, in numbers.
    """

    status: Status
    worst_ratio: float
    tests: int
    reason: str

    @classmethod
    def of(cls, verdict: OperatorVerdict, tests: int) -> Cell:
        """The verdict on an operator."""
        return cls(verdict.status, verdict.worst_ratio, tests, verdict.reason)


@dataclass(frozen=True)
class Row:
    """One operator on all implementations, or the whole model.

    Attributes
    ----------
    operator
        Its name.
    sources
        Lines of the model it comes from.
    cells
        By implementation.
    differences
        Between implementations of the same kernels: one at most for each platform.
    bits
        The same bit for bit, by platform, which decides nothing.
    """

    operator: str
    sources: tuple[str, ...]
    cells: Mapping[str, Cell]
    differences: tuple[Difference, ...] = ()
    bits: Mapping[str, Bits] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        """The gravest of its cells."""
        status: Status = "pass"
        for cell in self.cells.values():
            status = worse(status, cell.status)
        return status

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "operator": self.operator,
            "sources": list(self.sources),
            "cells": {
                label: {name: plainly(value) for name, value in vars(cell).items()}
                for label, cell in self.cells.items()
            },
            "differences": [each.to_json() for each in self.differences],
            "bits": {platform: bits.to_json() for platform, bits in self.bits.items()},
        }


@dataclass(frozen=True)
class MatrixReport:
    """What :func:`tapml.validate` finds on several implementations.

    Attributes
    ----------
    title
        What was validated.
    reference
        Name of the trusted device.
    implementations
        The columns, in the order in which they were named.
    rows
        One per operator, in graph order.
    whole
        The whole of it, as the last row; None where operators alone were run.
    facts
        Policy, versions and hashes, for the record.
    exit_code
        Of the error that a device was lost with, or could not be opened with; 0 where none was.
    """

    title: str
    reference: str
    implementations: tuple[Implementation, ...]
    rows: tuple[Row, ...]
    whole: Row | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    lost_with: int = 0

    @property
    def all_rows(self) -> tuple[Row, ...]:
        """The operators, and the whole."""
        return self.rows if self.whole is None else (*self.rows, self.whole)

    @property
    def status(self) -> Status:
        """The gravest of all verdicts; ``not run`` where a column is."""
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
        """Whether everything ran and passed everywhere and no two implementations differ."""
        return self.status == "pass" and not self.differences

    @property
    def exit_code(self) -> int:
        """0; 1 where a verdict or a difference says so; else why a device was not there."""
        if self.passed:
            return 0
        wrong = self.differences or self.status in ("fail", "degraded")
        return EXIT_MISMATCH if wrong or not self.lost_with else self.lost_with

    def status_of(self, label: str) -> Status:
        """The gravest verdict of one implementation."""
        status: Status = "pass" if self.rows else "not run"
        for row in self.all_rows:
            status = worse(status, row.cells[label].status)
        return status

    @property
    def headline(self) -> str:
        """How it ended, in one line."""
        count = len(self.differences)
        plural = "difference" if count == 1 else "differences"
        found = f"{count} implementation {plural}" if count else "no two implementations differ"
        ran = [each.platform for each in self.implementations if each.platform]
        if len(ran) < 2:
            found = "nothing to compare: fewer than two implementations ran"
        elif len(set(ran)) == len(ran):
            found = "nothing to compare: each is of another platform"
        many = len(self.implementations)
        return f"{self.status}: {self.title} on {many} device{'s' * (many != 1)}; {found}"

    def to_json(self) -> dict[str, Any]:
        """Plain data for a strict JSON file, format ``tapml-matrix/1``."""
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
            "whole": None if self.whole is None else self.whole.to_json(),
            "differences": [each.to_json() for each in self.differences],
            **self.facts,
        }

    def __str__(self) -> str:
        from tapml.matrix.text import lines_of

        return "\n".join(lines_of(self))
