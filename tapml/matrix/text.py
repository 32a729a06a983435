"""A matrix for a terminal: a table of operators by implementations, then what differs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tapml.matrix.report import Cell, MatrixReport, Row


def lines_of(report: MatrixReport) -> Iterator[str]:
    """All of it: who ran, the table, the differences, what does not pass, the headline."""
    for line in _lines(report):
        # A device's own words may hold what a terminal obeys.
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
    heads = ["operator", *(each.label for each in report.implementations), "between them"]
    rows = [heads]
    for row in report.all_rows:
        cells = [_cell(row.cells[each.label]) for each in report.implementations]
        rows.append([row.operator, *cells, _between(row)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    for texts in rows:
        padded = [f"{text:<{width}}" for text, width in zip(texts, widths, strict=True)]
        yield "  ".join(padded).rstrip()


def _cell(cell: Cell) -> str:
    return cell.status if cell.status == "not run" else f"{cell.status} {cell.worst_ratio:.3g}"


def _between(row: Row) -> str:
    """Whether implementations agree, and how closely."""
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


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""
