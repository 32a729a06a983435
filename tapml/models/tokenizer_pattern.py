r"""The patterns of tokenizers (Oniguruma's dialect) as Python's regular expressions.

``re`` has no ``\p{L}`` and means other things by ``\s`` and ``\w``, so every class is written out
as ranges of code points, from the Unicode tables of this Python. What would mean something else in
``re`` is refused by name rather than guessed: anchors, named groups, sets of sets, back references.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache
from itertools import groupby
from typing import Final, TypeAlias

from tapml_targets.errors import InputError

Range: TypeAlias = tuple[int, int]

_LONGEST: Final = 8192
_LAST: Final = 0x10FFFF
# From here on nothing is assigned but tags, variation selectors and private use.
_TABLE_END: Final = 0x40000
_TAGS: Final = (0xE0000, 0xE0200)
# The Unicode property White_Space; Python's own \s holds U+001C to U+001F as well.
WHITE_SPACE: Final[tuple[Range, ...]] = (
    (0x09, 0x0D), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
    (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000),
)  # fmt: skip
# Symbols that are Alphabetic in Unicode: circled, squared and negative Latin letters.
_LETTER_SYMBOLS: Final[tuple[Range, ...]] = (
    (0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189),
)  # fmt: skip
# Oniguruma takes these Latin-1 numbers for letters of words; Unicode does not.
_LATIN_NUMBERS: Final[tuple[Range, ...]] = ((0xB2, 0xB3), (0xB9, 0xB9), (0xBC, 0xBE))
# What beside the letter itself folds to it.
_FOLDED: Final = {"s": "\N{LATIN SMALL LETTER LONG S}", "k": "\N{KELVIN SIGN}"}
_CONTROLS: Final = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B, "a": 0x07, "e": 0x1B}
_GROUPS: Final = ("(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:")
_REPEAT: Final = re.compile(r"\{\d{1,4}(?:,\d{0,4})?\}|\{,\d{1,4}\}")
_CODE_POINT: Final = re.compile(r"x\{([0-9A-Fa-f]{1,6})\}|x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})")
_PROPERTY: Final = re.compile(r"([pP])\{(\^?)([A-Z][a-z]?)\}")
# Pairs of letters that one character folds to (ß, ﬁ, ...): Oniguruma matches it, re does not.
_FOLDED_PAIRS: Final = ("ss", "ff", "fi", "fl", "st")


def compile_pattern(pattern: str) -> re.Pattern[str]:
    r"""Translate a pattern.

    Parameters
    ----------
    pattern
        As ``tokenizer.json`` holds it, such as ``\s+(?!\S)| ?\p{L}+``.

    Raises
    ------
    InputError
        If it holds something that has no equal in ``re``; the message names it.
    """
    if len(pattern) > _LONGEST:
        raise InputError(f"a pattern of {len(pattern)} characters: expected at most {_LONGEST}")
    try:
        return re.compile(_Translator(pattern).translate())
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"the pattern {pattern[:200]!r} is not understood ({error})") from error


def ranges_of(name: str) -> tuple[Range, ...]:
    """Code points of a general category, ``L`` or ``Lu``, as ascending ranges."""
    return tuple(
        each for category, found in _category_table().items() if category.startswith(name)
        for each in found
    )  # fmt: skip


def word_ranges() -> tuple[Range, ...]:
    """Code points of words in Unicode: alphabetic, marks, decimal digits, connectors."""
    named = [ranges_of(name) for name in ("L", "M", "Nd", "Nl", "Pc")]
    return (*(each for found in named for each in found), *_LETTER_SYMBOLS)


def class_text(ranges: Iterable[Range], *, negated: bool = False) -> str:
    """A class of ``re`` that matches the code points in (or outside) the ranges."""
    merged: list[list[int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    inside = "".join(
        f"\\U{first:08x}" + (f"-\\U{last:08x}" if last > first else "") for first, last in merged
    )
    return f"[{'^' if negated else ''}{inside}]"


@cache
def _category_table() -> dict[str, tuple[Range, ...]]:
    found: dict[str, list[Range]] = {}
    for start, end in ((0, _TABLE_END), _TAGS):
        position = start
        for category, run in groupby(map(unicodedata.category, map(chr, range(start, end)))):
            length = sum(1 for _ in run)
            found.setdefault(category, []).append((position, position + length - 1))
            position += length
    found["Cn"] += [(_TABLE_END, _TAGS[0] - 1), (_TAGS[1], 0xEFFFF)]
    found["Co"] += [(0xF0000, _LAST)]
    return {category: tuple(ranges) for category, ranges in found.items()}


def _complement(ranges: Iterable[Range]) -> tuple[Range, ...]:
    found: list[Range] = []
    position = 0
    for first, last in sorted(ranges):
        if first > position:
            found.append((position, first - 1))
        position = max(position, last + 1)
    return (*found, (position, _LAST)) if position <= _LAST else tuple(found)


_CLASSES: Final[dict[str, Callable[[], tuple[Range, ...]]]] = {
    "s": lambda: WHITE_SPACE,
    "d": lambda: ranges_of("Nd"),
    "w": lambda: (*word_ranges(), *_LATIN_NUMBERS),
}


class _Translator:
    """One pass over a pattern, front to back."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._position = 0
        # Where the innermost case-insensitive group began, and the depth of groups around it.
        self._depth = 0
        self._insensitive: tuple[int, int] | None = None

    def translate(self) -> str:
        parts: list[str] = []
        while self._position < len(self._pattern):
            parts.append(self._item())
        return "".join(parts)

    def _item(self) -> str:
        character = self._pattern[self._position]
        match character:
            case "(":
                return self._group()
            case ")":
                self._end_group()
            case "[":
                return self._class()
            case "\\":
                ranges = self._escape()
                return class_text(ranges)
            case "{":
                return self._repeat()
            case "^" | "$":
                raise self._refused(f"the anchor {character}")
            case "*" | "+" | "?" | "|" | ".":
                pass
            case _:
                self._position += 1
                return self._literal(character)
        self._position += 1
        return character

    def _literal(self, character: str) -> str:
        if self._insensitive is None or not character.isalpha():
            return re.escape(character)
        if not character.isascii():
            # Some of them are two letters in the other case.
            raise self._refused(f"(?i:{character}), whose letters fold to one")
        lower = character.lower()
        either = {lower, lower.upper(), _FOLDED.get(lower, lower)}
        return class_text((ord(each), ord(each)) for each in either)

    def _group(self) -> str:
        rest = self._pattern[self._position :]
        opening = next((each for each in _GROUPS if rest.startswith(each)), "(")
        if opening == "(" and rest.startswith("(?"):
            raise self._refused(f"the group {rest[:4]}")
        self._position += len(opening)
        self._depth += 1
        if opening == "(?i:" and self._insensitive is None:
            self._insensitive = (self._position, self._depth)
        # Nothing refers to a group, so none has to be captured; letters are written out both ways.
        return "(?:" if opening in ("(", "(?i:") else opening

    def _end_group(self) -> None:
        if self._insensitive is not None and self._insensitive[1] == self._depth:
            inside = self._pattern[self._insensitive[0] : self._position].lower()
            if not inside.isascii() or any(pair in inside for pair in _FOLDED_PAIRS):
                raise self._refused(f"(?i:{inside}), whose letters fold to one")
            self._insensitive = None
        self._depth -= 1

    def _repeat(self) -> str:
        found = _REPEAT.match(self._pattern, self._position)
        if found is None:
            raise self._refused("a brace that repeats nothing")
        self._position = found.end()
        if self._pattern[self._position : self._position + 1] in ("+", "?"):
            raise self._refused(f"{found[0]}{self._pattern[self._position]}")
        return found[0]

    def _escape(self) -> tuple[Range, ...]:
        """What stands after a backslash, as ranges; the position moves behind it."""
        start = self._position + 1
        letter = self._pattern[start : start + 1]
        found = _PROPERTY.match(self._pattern, start)
        if found is not None and (ranges := ranges_of(found[3])):
            self._forbid_insensitive(found[0])
            self._position = found.end()
            return _complement(ranges) if (found[1] == "P") != (found[2] == "^") else ranges
        if letter.lower() in _CLASSES:
            self._forbid_insensitive(f"\\{letter}")
            self._position = start + 1
            ranges = _CLASSES[letter.lower()]()
            return _complement(ranges) if letter.isupper() else ranges
        code = _CODE_POINT.match(self._pattern, start)
        if code is not None:
            self._position = code.end()
            return self._single(int(code[1] or code[2] or code[3], 16))
        if letter in _CONTROLS:
            self._position = start + 1
            return self._single(_CONTROLS[letter])
        if not letter or letter.isalnum():
            raise self._refused(f"\\{self._pattern[start : start + 12]}")
        self._position = start + 1
        return self._single(ord(letter))

    def _single(self, code: int) -> tuple[Range, ...]:
        if code > _LAST:
            raise self._refused(f"the code point {code:#x}")
        return ((code, code),)

    def _class(self) -> str:
        self._forbid_insensitive("a class")
        self._position += 1
        negated = self._pattern.startswith("^", self._position)
        self._position += negated
        ranges: list[Range] = []
        while not self._pattern.startswith("]", self._position):
            ranges += self._member()
        if not ranges:
            raise self._refused("an empty class")
        self._position += 1
        return class_text(ranges, negated=negated)

    def _member(self) -> tuple[Range, ...]:
        first = self._class_item()
        follows = self._pattern[self._position : self._position + 2]
        if len(follows) < 2 or follows[0] != "-" or follows[1] == "]":
            return first
        self._position += 1
        last = self._class_item()
        if len(first) != 1 or len(last) != 1 or first[0][0] != first[0][1]:
            raise self._refused("a range between classes")
        if last[0][0] != last[0][1] or last[0][0] < first[0][0]:
            raise self._refused("a range that runs backwards")
        return ((first[0][0], last[0][0]),)

    def _class_item(self) -> tuple[Range, ...]:
        rest = self._pattern[self._position : self._position + 2]
        if not rest:
            raise self._refused("a class that does not end")
        if rest[0] == "[" or rest == "&&":
            raise self._refused(f"{rest} in a class")
        if rest[0] == "\\":
            return self._escape()
        self._position += 1
        return self._single(ord(rest[0]))

    def _forbid_insensitive(self, what: str) -> None:
        if self._insensitive is not None:
            raise self._refused(f"{what} that ignores case")

    def _refused(self, what: str) -> InputError:
        return InputError(
            f"the pattern {self._pattern[:200]!r} holds {what}, which is not supported"
        )
