"""Patterns of tokenizers match in `re` what they match in Oniguruma, or are refused."""

from __future__ import annotations

import unicodedata
from functools import cache

import pytest
from tokenizers import Regex, pre_tokenizers

from tapml.models.tokenizer_pattern import compile_pattern
from tapml_targets.errors import InputError


@cache
def every_character() -> str:
    """All that Python's tables know, private use and surrogates apart."""
    assigned = (chr(code) for code in range(0x110000))
    return "".join(c for c in assigned if unicodedata.category(c) not in {"Cn", "Co", "Cs"})


@pytest.mark.parametrize(
    "pattern",
    [
        r"\s", r"\d", r"\w", r"\W", r"\p{N}", r"\P{L}", r"\p{^Z}", r"\p{P}",
        r"[^\s\p{L}\p{N}]", r"[^\r\n\p{L}\p{N}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}]", r"(?i:s|k|i|D)",
        r"[一-龥぀-ゟ゠-ヿ]", r"[a-f\-\]\x{1F600}-\x{1F64F}]", r"\u00e9|\x41|\t",
    ],
)  # fmt: skip
def test_a_class_holds_the_characters_that_it_holds_there(pattern: str) -> None:
    text = every_character()
    matches = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    expected = {c for piece, _ in matches.pre_tokenize_str(text) for c in piece}
    assert {match[0] for match in compile_pattern(pattern).finditer(text)} == expected


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"^a", "the anchor ^"),
        (r"a$", "the anchor $"),
        (r"(?<name>a)", "the group (?<n"),
        (r"(?m:a)", "the group (?m:"),
        (r"\bword", r"\\bword"),
        (r"(a)\1", r"\\1"),
        (r"\p{Han}", r"\\p{Han}"),
        (r"[[:alpha:]]", "[: in a class"),
        (r"[a-z&&[^b]]", "&& in a class"),
        (r"[z-a]", "runs backwards"),
        (r"[\s-z]", "a range between classes"),
        (r"[abc", "does not end"),
        (r"[]", "an empty class"),
        (r"a{1,3}+", "{1,3}+"),
        (r"a{2}?", "{2}?"),
        (r"a{x}", "a brace that repeats nothing"),
        (r"(?i:\p{L})", "that ignores case"),
        (r"(?i:[a-z])", "a class that ignores case"),
        (r"(?i:strasse)", "fold to one"),
        (r"(?i:é)", "fold to one"),
        (r"(?i:ß)", "fold to one"),
        (r"(?i:İ)", "fold to one"),
        (r"\x{110000}", "the code point"),
        (r"(a", "is not understood"),
        (r"a**", "is not understood"),
        ("a" * 9000, "a pattern of 9000 characters"),
    ],
)
def test_what_would_mean_something_else_is_refused(pattern: str, words: str) -> None:
    with pytest.raises(InputError) as refusal:
        compile_pattern(pattern)
    assert words in str(refusal.value)
