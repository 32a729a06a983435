"""The one tokenizer of kernel sources: what is left without comments, strings and directives."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from tapml_targets.kernel_language import KernelLanguage

_WORD = r"(?P<token>[A-Za-z_]\w*|\d[\w.]*|[^\s\w])"
_STRING = r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'"


@dataclass(frozen=True)
class Token:
    """A word, a number or a mark, at `start` of the source."""

    text: str
    start: int


@dataclass(frozen=True)
class PlainText:
    """The tokens of a source; `text` has one blank between two of them."""

    tokens: tuple[Token, ...]
    source: str

    @cached_property
    def text(self) -> str:
        """What patterns of a :class:`~tapml_targets.kernel_language.KernelLanguage` are for."""
        return " ".join(token.text for token in self.tokens)

    def line(self, offset: int) -> int:
        """The line of the source, from 1, of a place in `text`."""
        return self.source.count("\n", 0, self.tokens[self.index(offset)].start) + 1

    def index(self, offset: int) -> int:
        """The token at a place in `text`."""
        return bisect_right(self._offsets, offset) - 1

    def spelled(self, tokens: Sequence[Token]) -> str:
        """Tokens as the source has them, with one blank where it has any space or comment."""
        pieces: list[str] = []
        end = tokens[0].start if tokens else 0
        for token in tokens:
            pieces += [" " * (token.start > end), token.text]
            end = token.start + len(token.text)
        return "".join(pieces)

    @cached_property
    def _offsets(self) -> list[int]:
        offsets, at = [], 0
        for token in self.tokens:
            offsets.append(at)
            at += len(token.text) + 1
        return offsets


def plain_text(source: str, language: KernelLanguage) -> PlainText:
    """The plain text of a source; half a source has one as well."""
    found = tuple(_without_dropped(list(_tokens(source, language)), language.dropped))
    return PlainText(found, source)


def _tokens(source: str, language: KernelLanguage) -> Iterator[Token]:
    opening, closing = language.block_comment
    hidden, at = _token(language.line_comment, opening, language.directive), 0
    while found := hidden.search(source, at):
        at = found.end()
        if found["token"]:
            yield Token(found["token"], found.start())
        elif found["opening"]:
            at = _comment_end(source, at, opening, closing, nested=language.nested_comments)


@cache
def _token(line_comment: str, block_comment: str, directive: str) -> re.Pattern[str]:
    """A token, or what is none: of a block comment only its beginning."""
    kinds = [
        rf"{re.escape(line_comment)}[^\n]*",
        rf"(?P<opening>{re.escape(block_comment)})",
        _STRING,
        *([rf"^[ \t]*{re.escape(directive)}(?:\\\n|[^\n])*"] if directive else []),
        _WORD,
    ]
    return re.compile("|".join(kinds), re.MULTILINE)


def _comment_end(source: str, at: int, opening: str, closing: str, *, nested: bool) -> int:
    depth = 1
    for mark in re.compile(f"{re.escape(opening)}|{re.escape(closing)}").finditer(source, at):
        depth += -1 if mark[0] == closing else int(nested)
        if not depth:
            return mark.end()
    return len(source)


def _without_dropped(tokens: list[Token], dropped: frozenset[str]) -> Iterator[Token]:
    at = 0
    while at < len(tokens):
        if tokens[at].text not in dropped:
            yield tokens[at]
            at += 1
            continue
        end = closing_parenthesis(tokens, at + 2) if _opens(tokens, at + 1) else None
        at = at + 1 if end is None else end + 1


def _opens(tokens: Sequence[Token], at: int) -> bool:
    return at < len(tokens) and tokens[at].text == "("


def closing_parenthesis(tokens: Sequence[Token], start: int) -> int | None:
    """The token that closes the parenthesis before `start`; None if there is none."""
    depth = 1
    for at in range(start, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[at].text, 0)
        if not depth:
            return at
    return None
