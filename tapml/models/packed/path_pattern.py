r"""The patterns of paths that a quantization_config has, in a part of Python's language.

Characters, ``.``, ``\d``, ``\w``, ``\.`` and ``[classes]``, each perhaps with ``*``, ``+`` or
``?``; groups with alternatives; ``^`` and ``$``. The folder may come from anybody, and ``re`` can
take for ever on ``(.+)+!``, so the set of all places that a part can reach is followed instead:
the time is at most proportional to the product of the lengths of the pattern and the path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final

from tapml_targets.errors import InputError

_MAX_CHARACTERS: Final = 1000
# Of groups in groups: far below what Python's stack has room for.
_MAX_DEPTH: Final = 20
# A part of a pattern; a group or an alternative has no repetition of its own.
_TOKEN: Final = re.compile(
    r"(?P<one>\\[dw]|\\[^\w\s]|\[\^?(?:[\w./:-]|\\[dw.-])+\]|[\w./:@#=, -])(?P<repeat>[*+?]?)\??"
    r"|(?P<open>\((?:\?:)?)|(?P<close>\))|(?P<other>\|)|(?P<edge>[\^$])"
)
Places = frozenset[int]
Part = Callable[[str, Places], Places]


def matches(pattern: str, path: str) -> bool:
    """Whether a path begins with what a pattern that was checked describes, as of ``re.match``."""
    return bool(_compiled(pattern)(path, frozenset({0})))


def check_pattern(pattern: str, where: str) -> None:
    """Check a pattern that the file `where` has.

    Raises
    ------
    InputError
        If the pattern is not of this language.
    """
    try:
        _compiled(pattern)
    except _PatternError as error:
        raise InputError(
            f"{where} has the pattern {pattern[:60]!r} in its quantization_config: expected "
            "letters, '.', \\d, \\w or [classes], each perhaps with '*', '+' or '?', and groups of "
            f"alternatives that are not repeated, at most {_MAX_CHARACTERS} characters"
        ) from error


class _PatternError(Exception):
    """A pattern is not of this language."""


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Part:
    tokens = _tokens(pattern)
    part = _alternatives(tokens, 0)
    if next(tokens, None) is not None:
        raise _PatternError
    return part


def _tokens(pattern: str) -> Iterator[re.Match[str]]:
    if len(pattern) > _MAX_CHARACTERS:
        raise _PatternError
    at = 0
    while at < len(pattern):
        found = _TOKEN.match(pattern, at)
        if found is None:
            raise _PatternError
        yield found
        at = found.end()


def _alternatives(tokens: Iterator[re.Match[str]], depth: int) -> Part:
    """The part up to the end of a group, or of the pattern."""
    if depth > _MAX_DEPTH:
        raise _PatternError
    sequences: list[list[Part]] = [[]]
    for token in tokens:
        if token["close"]:
            if depth:
                return _any_of(sequences)
            raise _PatternError
        if token["other"]:
            sequences.append([])
        elif token["open"]:
            sequences[-1].append(_alternatives(tokens, depth + 1))
        else:
            sequences[-1].append(_edge(token["edge"]) if token["edge"] else _one(token))
    if depth:
        raise _PatternError
    return _any_of(sequences)


def _any_of(sequences: Iterable[Iterable[Part]]) -> Part:
    def reached(path: str, places: Places) -> Places:
        found: Places = frozenset()
        for sequence in sequences:
            here = places
            for part in sequence:
                here = part(path, here)
            found |= here
        return found

    return reached


def _edge(edge: str) -> Part:
    return lambda path, places: places & {0 if edge == "^" else len(path)}


def _one(token: re.Match[str]) -> Part:
    """A character, perhaps repeated."""
    try:
        character = re.compile(token["one"])
    except re.error as error:  # [z-a]
        raise _PatternError from error
    least, more = token["repeat"] not in ("*", "?"), token["repeat"] in ("*", "+")

    def reached(path: str, places: Places) -> Places:
        found: set[int] = set() if least else set(places)
        waiting = list(places)
        while waiting:
            place = waiting.pop()
            after = place + 1
            if after not in found and character.match(path, place):
                found.add(after)
                if more:
                    waiting.append(after)
        return frozenset(found)

    return reached
