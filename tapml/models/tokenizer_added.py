"""Added tokens: looked for in the text before anything else is done to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tapml.models.tokenizer_pattern import WHITE_SPACE, class_text, word_ranges
from tapml.models.tokenizer_steps import Normalizer, Piece
from tapml_targets.errors import InputError

Part: TypeAlias = Piece | int

# Part of a word for the library that looks for added tokens, if not for the patterns.
_JOINERS: Final = (0x200C, 0x200D)
_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True)
class AddedToken:
    """One entry of ``added_tokens``; the fields are those of the ``tokenizers`` library.

    `text` is what is looked for: `content`, normalized where `normalized` says so.
    """

    id: int
    content: str
    text: str
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool
    special: bool


def read_added_tokens(
    data: Sequence[Any], vocabulary: Mapping[str, int], normalize: Normalizer
) -> tuple[AddedToken, ...]:
    """Check the entries and give each token its id.

    Raises
    ------
    InputError
        If one makes no sense, or has another id than the library would give it: that of its text
        in the vocabulary, else the next free one.
    """
    tokens: dict[int, AddedToken] = {}
    known: dict[str, int] = {}
    following = len(vocabulary)
    for entry in data:
        match entry:
            case {"id": int(given), "content": str(content)} if all(
                isinstance(entry.get(flag), bool) for flag in _FLAGS
            ):
                flags = {flag: bool(entry[flag]) for flag in _FLAGS}
            case _:
                raise InputError(f"an added token makes no sense: {str(entry)[:100]}")
        if not content:
            continue
        number = known.get(content, vocabulary.get(content, following))
        if number != given:
            raise InputError(f"the added token {content[:40]!r} has id {given}, not {number}")
        text = normalize(content) if flags["normalized"] else content
        if number in tokens:
            del known[tokens[number].content]
        tokens[number] = AddedToken(number, content, text, **flags)
        known[content] = number
        following = max(following, number + 1)
    return tuple(tokens.values())


class AddedTokens:
    """Finds added tokens in a text, the longest of those that begin first."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._by_text = {token.text: token for token in tokens if token.text}
        longest_first = sorted(self._by_text, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._word = (
            re.compile(class_text((*word_ranges(), _JOINERS))) if self._needs_words() else None
        )
        self._space = re.compile(f"{class_text(WHITE_SPACE)}*")

    def split(self, piece: Piece) -> list[Part]:
        """The piece in parts: ids of the tokens in it, and what lies between them."""
        text = piece.text
        parts: list[Part] = []
        end = 0
        for match in self._pattern.finditer(text):
            token = self._by_text[match[0]]
            start, stop = match.span()
            if token.single_word and self._inside_word(text, start, stop):
                continue
            if token.lstrip:
                while start > end and self._space.fullmatch(text[start - 1]):
                    start -= 1
            if token.rstrip:
                stop = self._end_of_space(text, stop)
            if start > end:
                parts.append(Piece(text[end:start], piece.first and end == 0))
            parts.append(token.id)
            end = stop
        if end < len(text):
            parts.append(Piece(text[end:], piece.first and end == 0))
        return parts

    def _needs_words(self) -> bool:
        return any(token.single_word for token in self._by_text.values())

    def _inside_word(self, text: str, start: int, stop: int) -> bool:
        assert self._word is not None  # noqa: S101 - made where a token asks for it
        before, after = text[max(0, start - 1) : start], text[stop : stop + 1]
        return bool(self._word.match(before) or self._word.match(after))

    def _end_of_space(self, text: str, start: int) -> int:
        found = self._space.match(text, start)
        return start if found is None else found.end()
