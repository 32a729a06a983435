"""Finds the lines of a manifest's keys, which tomllib does not report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, TypeAlias

from tapml_targets.errors import CompileError

Key: TypeAlias = "tuple[str | int, ...]"

_TABLE: Final = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_ASSIGNMENT: Final = re.compile(r"\s*([A-Za-z0-9_.\-\"' ]+?)\s*=")
_SKIPPED: Final = re.compile(r"\#[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*'")


class Places:
    """Lines of a manifest's keys, for messages.

    Parameters
    ----------
    path
        The manifest.
    text
        Its content, valid TOML.
    """

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self._text = text
        self._lines: dict[Key, int] = {}
        self._find_keys()

    def error(self, key: Key, problem: str) -> CompileError:
        """Make an error that names file, line and key."""
        line = self.line(key)
        place = f"{self.path}:{line}" if line else str(self.path)
        named = f"{spell(key)}: " if key else ""
        return CompileError(f"{place}: {named}{problem}")

    def line(self, key: Key) -> int | None:
        """The line of a key, from 1, or of the nearest enclosing key."""
        for length in range(len(key), 0, -1):
            start = self._lines.get(key[:length])
            if start is None:
                continue
            rest = key[length:]
            if rest and isinstance(rest[0], int):
                return self._line_of_element(start, rest[0])
            return start
        return None

    def _find_keys(self) -> None:
        table: Key = ()
        counts: dict[Key, int] = {}
        for number, line in enumerate(self._text.splitlines(), 1):
            header = _TABLE.match(line)
            if header is not None:
                table = self._table(header.group(1), header.group(2), counts)
                self._lines.setdefault(table, number)
                if isinstance(table[-1], int):
                    self._lines.setdefault(table[:-1], number)
                continue
            assignment = _ASSIGNMENT.match(line)
            if assignment is not None:
                self._lines.setdefault((*table, *_parts(assignment.group(1))), number)

    def _table(self, brackets: str, name: str, counts: dict[Key, int]) -> Key:
        *around, last = _parts(name)
        key: Key = ()
        for part in around:
            key = (*key, part)
            if key in counts:
                key = (*key, counts[key])
        key = (*key, last)
        if brackets == "[[":
            counts[key] = counts.get(key, -1) + 1
            key = (*key, counts[key])
        return key

    def _line_of_element(self, start: int, index: int) -> int:
        """The line of an element of the array of a key on line `start`."""
        lines = self._text.splitlines(keepends=True)
        value = "".join(lines[start - 1 :]).partition("=")[2]
        plain = _SKIPPED.sub(lambda found: "." * len(found.group()), value)
        depth, element = 0, 0
        for position, character in enumerate(plain):
            if depth == 1 and element == index and not character.isspace() and character != "]":
                return start + plain.count("\n", 0, position)
            if character in "[{":
                depth += 1
            elif character in "]}":
                depth -= 1
                if not depth:
                    break
            elif character == "," and depth == 1:
                element += 1
        return start


def spell(key: Key) -> str:
    """A key as text: ``launches[1].grid[0]``."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _parts(name: str) -> list[str]:
    return [part.strip().strip("\"'") for part in name.split(".")]
