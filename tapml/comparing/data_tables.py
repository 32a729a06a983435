"""Tables as data: a ``.csv`` or ``.tsv`` file with a row an instance."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from tapml.backends.runner import Array
from tapml_targets.errors import InputError

ENDINGS: Final = {".csv": ",", ".tsv": "\t"}
"""What separates the columns."""
_OTHER: Final = ";"
"""The same, where the decimal point is a comma in the language of who wrote it."""
LABEL_COLUMNS: Final = ("y", "label", "labels", "target", "class")
_LARGEST_BYTES: Final = 128 << 20
"""Its cells take about ten times as much memory as they are read."""


def read_table(file: Path) -> dict[str, Array]:
    """``x`` of all columns, ``[rows, columns]``, and ``y`` of the one that its title says.

    The first line may be titles: words, or 0, 1, 2 and so on. A first column without a title has
    the numbers of rows, as pandas writes them, and is left out. A label of another kind than a
    number is the place of its name in the order of all names.

    Raises
    ------
    InputError
        If the file is no such table, is too large, or a cell is no number.
    """
    try:
        if file.stat().st_size > _LARGEST_BYTES:
            raise InputError(
                f"{file} is larger than {_LARGEST_BYTES >> 20} MiB; save its numbers as a .npy file"
            )
        with file.open(encoding="utf-8-sig", newline="") as opened:
            first = opened.readline()
            opened.seek(0)
            separator = ENDINGS[file.suffix.lower()]
            if separator not in first and _OTHER in first:
                separator = _OTHER
            lines = csv.reader(opened, delimiter=separator)
            rows = [(lines.line_num, row) for row in lines if any(each.strip() for each in row)]
    except FileNotFoundError as error:
        raise InputError(f"there is no file {file}") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file} is no table of text in UTF-8 ({error})") from error
    titles = [each.strip() for each in rows[0][1]] if rows else []
    if not _are_titles(titles):
        titles = [f"column {at + 1}" for at in range(len(titles))]
    else:
        rows = rows[1:]
    if not rows:
        raise InputError(f"{file} has no rows; expected a line of numbers for each instance")
    for line, row in rows:
        if len(row) != len(titles):
            raise InputError(
                f"line {line} of {file} has {len(row)} columns; expected {len(titles)}, as before"
            )
    columns = dict(zip(titles, zip(*(row for _, row in rows), strict=True), strict=True))
    if len(columns) < len(titles):
        raise InputError(f"{file} has two columns of one title; expected each once")
    if len(titles) > 1 and not titles[0]:
        titles = titles[1:]
    label = next((each for each in titles if each.lower() in LABEL_COLUMNS), None)
    numbers = [line for line, _ in rows]
    x = [_numbers(file, title, columns[title], numbers) for title in titles if title != label]
    if not x:
        raise InputError(f"{file} has no column beside {label!r}; expected those that x holds")
    found = {"x": np.stack(x, axis=1)}
    if label is None:
        return found
    if all(map(_is_number, columns[label])):
        return found | {"y": _numbers(file, label, columns[label], numbers)}
    return found | {
        "y": np.unique([each.strip() for each in columns[label]], return_inverse=True)[1]
    }


def _numbers(file: Path, title: str, cells: Sequence[str], lines: Sequence[int]) -> Array:
    """A column: of whole numbers, if all are."""
    try:
        return np.array([int(each) for each in cells], np.int64)
    except (ValueError, OverflowError):
        pass
    for line, cell in zip(lines, cells, strict=True):
        if not _is_number(cell):
            raise InputError(
                f"line {line} of {file} has {cell.strip()!r} in {title}; expected a number, or "
                f"labels in a column named {' or '.join(LABEL_COLUMNS)}"
            )
    return np.array([float(each) for each in cells])


def _are_titles(cells: Sequence[str]) -> bool:
    """Whether no cell is a number, or they are the places by which pandas names columns."""
    numbers = [each for each in cells if _is_number(each)]
    return numbers == [str(at) for at in range(len(numbers))] and len(numbers) not in (1, 2)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
