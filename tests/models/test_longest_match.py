"""RWKV's tokenizer: the longest token that begins the rest of the text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml.models.codec_of_folder import load_codec
from tapml.models.longest_match import VOCABULARY, LongestMatch
from tapml.package.codecs import open_codec, packaged_tokenizer
from tapml_targets.errors import InputError

WORDS = ("the", " the", "there", " there", "th", "é", "ée", "日本", "\n\n", "'", '"')
ODD = (b"\xe6\x97", b"\xa5\xe6\x9c")


def vocabulary() -> bytes:
    """Every byte from 1, then words and pieces of characters, as the published file has them."""
    tokens = [*(bytes([each]) for each in range(256)), *(each.encode() for each in WORDS), *ODD]
    lines = []
    for number, token in enumerate(tokens, 1):
        try:
            spelled = repr(token.decode())
        except UnicodeDecodeError:
            spelled = repr(token)
        if token not in tokens[: number - 1]:
            lines.append(f"{number} {spelled} {len(token)}")
    return "\n".join([*lines, ""]).encode()


CODEC = LongestMatch(vocabulary())


def test_the_longest_token_is_taken_not_the_most_likely_one() -> None:
    first = 257
    ids = {word: first + index for index, word in enumerate(WORDS)}
    assert CODEC.encode(" there the") == (ids[" there"], ids[" the"])
    assert CODEC.encode("thx") == (ids["th"], ord("x") + 1)
    assert CODEC.encode("éee日本") == (ids["ée"], ord("e") + 1, ids["日本"])


@given(st.text(st.sampled_from("the réé日本\n'\"x🦙\0")))
def test_every_text_comes_back_and_each_token_is_the_longest(text: str) -> None:
    ids = CODEC.encode(text)
    assert CODEC.decode(ids) == text
    rest = text.encode()
    known = [each.encode() for each in WORDS] + list(ODD)
    for token in ids:
        taken = CODEC._bytes[token]
        assert rest.startswith(taken)
        assert not any(rest.startswith(each) for each in known if len(each) > len(taken))
        rest = rest[len(taken) :]


def test_a_character_in_several_tokens_is_streamed_whole_and_the_end_token_is_no_text() -> None:
    stream = CODEC.stream()
    assert [stream.push(each) for each in CODEC.encode("🦙")] == ["", "", "", "🦙"]
    assert CODEC.decode([0, 65535, ord("a") + 1]) == "a"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("98 'a' 1", "98 'a' 2", "line 98 is \"98 'a' 2\": expected a number, a text or bytes"),
        ("98 'a' 1", "98 open('x') 1", "line 98 is .*: expected a number"),
        ("98 'a' 1", "97 'a' 1", "line 98 is .*: its number or its token came before"),
        ("98 'a' 1\n", "", "no token is the byte 0x61: expected all 256"),
    ],
)
def test_a_vocabulary_that_is_none_is_refused_by_its_line(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    text = vocabulary().decode()
    assert old in text
    (tmp_path / VOCABULARY).write_text(text.replace(old, new))
    with pytest.raises(InputError, match=f"{VOCABULARY} cannot be used: {said}"):
        load_codec(tmp_path)


def test_it_goes_with_a_package_and_needs_no_library(tmp_path: Path) -> None:
    (tmp_path / VOCABULARY).write_bytes(vocabulary())
    note, content = packaged_tokenizer(tmp_path, ())
    assert (note.reader, note.file) == ("longest-match", VOCABULARY)
    assert content is not None
    assert open_codec(note, content).encode(" there") == CODEC.encode(" there")
