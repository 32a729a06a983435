"""Files of SentencePiece and of tiktoken's kind give the tokens that their own rules give.

The rules are written out here; the files are made by a trainer of pairs of our own.
"""

from __future__ import annotations

import base64
import itertools
import json
import struct
from pathlib import Path

import pytest

from tapml.models.codec_of_folder import load_codec
from tapml.models.text import TextCodec
from tapml.models.tokenizer_json import JsonTokenizer
from tapml.package.codecs import packaged_tokenizer
from tapml_targets.errors import InputError

CORPUS = "the theme of the thesis is that these three things thaw in the heat, then hide " * 3
TEXTS = (
    "the theme",
    " then  these\nthree",
    "Things, hide 2026!",
    "é ñ 汉字 \U0001f600",
    "",
    "thethe<|im_end|>",
)
SPACE = "\u2581"


def varint(value: int) -> bytes:
    """A whole number as protobuf stores it."""
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def field(number: int, value: int | bytes | float) -> bytes:
    """A field of a message."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def trained(parts: list[str], count: int) -> list[str]:
    """Tokens of several parts, the most frequent pair first."""
    made: list[str] = []
    while len(made) < count:
        pairs: dict[str, int] = {}
        for left, right in itertools.pairwise(parts):
            if not right.startswith((SPACE, " ")):
                pairs[left + right] = pairs.get(left + right, 0) + 1
        best = max(pairs, key=lambda each: (pairs[each], each))
        made.append(best)
        at = 0
        while at < len(parts) - 1:
            if parts[at] + parts[at + 1] == best:
                parts[at : at + 2] = [best]
            at += 1
    return made


def write_sentencepiece(path: Path, *, kind: int = 2, fewer_spaces: int = 0) -> list[str]:
    """A model of pairs with a byte for what it does not know; its pieces."""
    text = CORPUS.replace(" ", SPACE)
    plain = [*trained(list(text), 25), *sorted(set(text))]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *plain]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(plain)]
    data = b""
    for number, (piece, each) in enumerate(zip(pieces, kinds, strict=True)):
        score = float(-(number - 259)) if each == 1 else 0.0
        data += field(1, field(1, piece.encode()) + field(2, score) + field(3, each))
    data += field(2, field(3, kind) + field(40, 0) + field(41, 1) + field(42, 2))
    data += field(3, field(1, b"identity") + field(3, 1) + field(4, fewer_spaces))
    path.write_bytes(data)
    return pieces


def by_scores(text: str, pieces: list[str]) -> list[int]:
    """SentencePiece's rule: of all neighbours those whose piece comes first go together."""
    if not text:
        return []
    numbers = {piece: number for number, piece in enumerate(pieces)}
    plain = set(pieces[259:])
    parts = list((SPACE + text).replace(" ", SPACE))
    while True:
        pairs = [
            (numbers[a + b], at)
            for at, (a, b) in enumerate(itertools.pairwise(parts))
            if a + b in plain
        ]
        if not pairs:
            break
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    found: list[int] = []
    for part in parts:
        found += [numbers[part]] if part in plain else [3 + byte for byte in part.encode()]
    return found


def test_sentencepiece_merges_by_its_scores(tmp_path: Path) -> None:
    pieces = write_sentencepiece(tmp_path / "tokenizer.model")
    codec = load_codec(tmp_path)
    assert codec is not None
    for text in TEXTS:
        assert list(codec.encode(text, special=False)) == by_scores(text, pieces), text
        assert codec.decode(codec.encode(text)) == text
    # The begin token, unless the settings say otherwise.
    assert codec.encode("the")[0] == 1
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False}), "utf-8")
    without = load_codec(tmp_path)
    assert without is not None
    assert list(without.encode("the")) == by_scores("the", pieces)


def write_ranks(path: Path) -> dict[bytes, int]:
    """A vocabulary of bytes and pairs by rank."""
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [each.encode("latin-1") for each in trained(list(CORPUS), 25)]
    lines = [f"{base64.b64encode(each).decode()} {rank}" for rank, each in enumerate(tokens)]
    path.write_text("\n".join(lines) + "\n", "ascii")
    return {each: rank for rank, each in enumerate(tokens)}


def by_ranks(piece: bytes, ranks: dict[bytes, int]) -> list[int]:
    """tiktoken's rule: of all neighbours those of the lowest rank go together."""
    parts = [bytes([byte]) for byte in piece]
    while True:
        pairs = [
            (ranks[a + b], at)
            for at, (a, b) in enumerate(itertools.pairwise(parts))
            if a + b in ranks
        ]
        if not pairs:
            return [ranks[each] for each in parts]
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def test_tiktoken_merges_by_its_ranks(tmp_path: Path) -> None:
    ranks = write_ranks(tmp_path / "qwen.tiktoken")
    codec = load_codec(tmp_path)
    assert codec is not None
    # Pieces by Qwen's pattern, cut by hand.
    for pieces in (
        ["the", " theme"],
        ["hide", " ", "2", "0", "!"],
        ["é", " 汉字"],
        [" ", " then", "\n", "these"],
    ):
        expected = [token for each in pieces for token in by_ranks(each.encode(), ranks)]
        assert list(codec.encode("".join(pieces))) == expected
    for text in TEXTS[:5]:
        assert codec.decode(codec.encode(text)) == text
    # Special tokens come behind the ranks, and are no text.
    assert codec.encode("the<|im_end|>")[-1] == len(ranks) + 2
    assert codec.decode(codec.encode("the<|im_end|>")) == "the"


@pytest.mark.parametrize("kind", ["sentencepiece", "tiktoken"])
def test_a_package_takes_it_as_tokenizer_json(tmp_path: Path, kind: str) -> None:
    if kind == "tiktoken":
        write_ranks(tmp_path / "qwen.tiktoken")
    else:
        write_sentencepiece(tmp_path / "tokenizer.model")
    note, content = packaged_tokenizer(tmp_path, TEXTS[:3])
    assert note.reader == "tokenizers", note
    assert content is not None
    own = load_codec(tmp_path)
    assert isinstance(own, TextCodec)
    assert JsonTokenizer(content).encode("the theme") == own.encode("the theme")


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    write_sentencepiece(path, kind=1)
    with pytest.raises(InputError, match="is a unigram model: expected one that merges pairs"):
        load_codec(tmp_path)
    write_sentencepiece(path, fewer_spaces=1)
    with pytest.raises(InputError, match="changes characters or spaces"):
        load_codec(tmp_path)
    write_sentencepiece(path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(InputError, match="is no SentencePiece model"):
        load_codec(tmp_path)
    ranks = tmp_path / "qwen.tiktoken"
    for text, expected in (("!! 0", "line 1: expected a token"), ("YQ== 0", "every byte among")):
        ranks.write_text(text, "ascii")
        with pytest.raises(InputError, match=expected):
            load_codec(tmp_path)
