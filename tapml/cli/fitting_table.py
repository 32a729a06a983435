"""Tables that fit a terminal without breaking a name: what is needed least is left out first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_BETWEEN = 2

Columns = Mapping[str, Sequence[str]]


def fitting_table(
    columns: Columns, width: int, *, spare: Sequence[str], below: tuple[str, str] | None = None
) -> tuple[Table, tuple[str, ...]]:
    """A table that is at most as wide as a terminal, if that can be, and the titles it leaves out.

    Parameters
    ----------
    columns
        The texts of every column by its title.
    width
        Characters in a line.
    spare
        Titles of columns that may be left out, the least needed first.
    below
        Two columns of which the second may be printed below the first. This is tried once the
        first of `spare` is left out, before others are.
    """
    from rich.table import Table
    from rich.text import Text

    layouts = list(_layouts(columns, spare, below))
    fitting = (each for each in layouts if _width(each[0]) <= width)
    chosen, left_out = next(fitting, layouts[-1])
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in chosen:
        table.add_column(title, overflow="fold")
    # The texts come from drivers and from other machines: no markup.
    for row in zip(*chosen.values(), strict=True):
        table.add_row(*map(Text, row))
    return table, left_out


def _layouts(
    columns: Columns, spare: Sequence[str], below: tuple[str, str] | None
) -> Iterator[tuple[dict[str, Sequence[str]], tuple[str, ...]]]:
    for count in range(min(2, len(spare) + 1)):
        yield _without(columns, spare[:count]), tuple(spare[:count])
    stacked = columns if below is None else _stacked(columns, *below)
    for count in range(1, len(spare) + 1):
        yield _without(stacked, spare[:count]), tuple(spare[:count])


def _without(columns: Columns, titles: Sequence[str]) -> dict[str, Sequence[str]]:
    return {title: texts for title, texts in columns.items() if title not in titles}


def _stacked(columns: Columns, first: str, second: str) -> dict[str, Sequence[str]]:
    both = [f"{a}\n{b}" for a, b in zip(columns[first], columns[second], strict=True)]
    return {
        (f"{first}, {second}" if title == first else title): both if title == first else texts
        for title, texts in columns.items()
        if title != second
    }


def _width(columns: Columns) -> int:
    widths = (
        max(len(line) for text in (title, *texts) for line in text.split("\n"))
        for title, texts in columns.items()
    )
    return sum(widths) + _BETWEEN * (len(columns) - 1)
