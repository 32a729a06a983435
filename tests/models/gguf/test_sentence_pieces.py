"""A tokenizer of SentencePiece's kind in a GGUF file cuts text as SentencePiece's rule says."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapml.models.gguf.tokenizer import tokenizer_json
from tapml.models.tokenizer_json import JsonTokenizer
from tapml_targets.errors import InputError

SPACE = "\u2581"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = [
    f"{SPACE}th", "th", "he", f"{SPACE}the", "er", f"{SPACE}there", "re", "there", f"{SPACE}t",
    f"{SPACE}{SPACE}", "ee", SPACE, "t", "h", "e", "r",
]  # fmt: skip
TOKENS = ["<unk>", "<s>", "</s>", *BYTES, *PIECES]
KINDS = [2, 3, 3, *[6] * 256, *[1] * len(PIECES)]
SCORES = [0.0] * 259 + [-float(index) for index in range(len(PIECES))]


def fields(**more: Any) -> dict[str, Any]:
    given_fields = {
        "model": "llama", "tokens": TOKENS, "scores": SCORES, "token_type": KINDS,
        "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0,
    }  # fmt: skip
    return {f"tokenizer.ggml.{name}": each for name, each in (given_fields | more).items()}


def by_the_rule(text: str) -> list[int]:
    """The best-scored pair of neighbours is joined, the first of equals, until none is a token."""
    parts = list(SPACE + text.replace(" ", SPACE))
    known = dict(zip(PIECES, SCORES[259:], strict=True))
    while True:
        pairs = [(known.get(a + b), -at) for at, (a, b) in enumerate(pairwise(parts))]
        found = [(score, at) for score, at in pairs if score is not None]
        if not found:
            break
        at = -max(found)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    ids = []
    for part in parts:
        ids += [TOKENS.index(part)] if part in PIECES else [3 + byte for byte in part.encode()]
    return ids


@pytest.fixture(scope="module")
def codec() -> JsonTokenizer:
    text = tokenizer_json(fields())
    assert text is not None
    return JsonTokenizer(text)


@settings(max_examples=200, deadline=None)
@given(text=st.text("ther xß", min_size=1, max_size=16))
def test_text_is_cut_by_scores_and_comes_back(codec: JsonTokenizer, text: str) -> None:
    ids = codec.encode(text)
    assert list(ids) == [1, *by_the_rule(text)]
    assert codec.decode(ids) == text


def test_special_tokens_and_the_settings_of_a_file_hold(codec: JsonTokenizer) -> None:
    assert codec.encode("</s>", special=False)[-1] == 2
    assert codec.decode([1, 2]) == ""
    plain = tokenizer_json(fields(add_bos_token=False, add_space_prefix=False))
    assert plain is not None
    assert JsonTokenizer(plain).encode("the") == (TOKENS.index("th"), TOKENS.index("e"))


@pytest.mark.parametrize("more", [{"scores": [0.0]}, {"token_type": []}, {"unknown_token_id": -1}])
def test_parts_that_do_not_fit_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="these do not fit"):
        tokenizer_json(fields(**more))
