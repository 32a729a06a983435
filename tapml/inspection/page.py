"""The description of a file or folder as plain data: facts by name, and tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tapml.durable.strict_json import to_strict

Cell: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True)
class Table:
    """Rows with a cell for each column."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def to_json(self) -> list[dict[str, Cell]]:
        """A dictionary per row; non-finite numbers become text.

        >>> Table("numbers", ("name", "worst"), (("x", float("inf")),)).to_json()
        [{'name': 'x', 'worst': 'inf'}]
        """
        return [dict(zip(self.columns, to_strict(row), strict=True)) for row in self.rows]


@dataclass(frozen=True)
class Page:
    """The description of one file or folder.

    `kind` is ``suite``, ``test``, ``session``, ``repro``, ``bundle``, ``library``, ``export`` or
    ``package``.
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
