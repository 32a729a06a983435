"""What is said about one thing: facts by name, and tables. Plain data; the command prints it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Cell: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True)
class Table:
    """Rows under column names; a row has a cell for each column."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def to_json(self) -> list[dict[str, Cell]]:
        """A map per row; what strict JSON has no number for becomes text."""
        return [dict(zip(self.columns, map(_plain, row), strict=True)) for row in self.rows]


@dataclass(frozen=True)
class Page:
    """Everything about one thing.

    Attributes
    ----------
    kind
        ``suite``, ``test``, ``session``, ``repro``, ``library``, ``export``,
        ``package``.
    path
        Where it lies.
    facts
        By name.
    tables
        In order.
    """

    kind: str
    path: str
    facts: dict[str, Cell] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data for a strict JSON file."""
        return {
            "kind": self.kind,
            "path": self.path,
            "facts": self.facts,
            **{table.title: table.to_json() for table in self.tables},
        }


def _plain(cell: Cell) -> Cell:
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell
