"""Tokenizers read with the base install give what the `tokenizers` library gives."""

from __future__ import annotations

import json
import time
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tapml.models.resolve import resolve_model
from tapml.models.text import load_codec
from tapml.models.tokenizer_json import JsonTokenizer
from tapml_targets.errors import InputError
from tests.models.tokenizers import FAMILIES, TEXT, family

QUICK = settings(max_examples=60, deadline=None)
# Newer characters than this Python's and the library's tables agree on are out of the question.
CHARACTERS = st.characters(codec="utf-8", exclude_categories=("Cn", "Co"))
FRAGMENTS = st.sampled_from(
    [*TEXT.split(" "), " ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "'\u017f", "<|begin|>", "<s>",
     "</s>", "<0x0A>", "[INST]", "[/INST]", "<mask>", "<think>", "<|im_start|>", "wörd", "a1",
     "normal ﬁnd", "normal find", "\x1c", "\x85", "\u180e", "\u200d", "_", "12345", "▁", "\ufeff"]
)  # fmt: skip
TEXTS = st.lists(st.one_of(FRAGMENTS, st.text(CHARACTERS, max_size=6)), max_size=14).map("".join)


@cache
def pair(name: str) -> tuple[Tokenizer, JsonTokenizer]:
    reference = family(name)
    return reference, JsonTokenizer(json.loads(reference.to_str()))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_encoded_as_the_library_does(name: str) -> None:
    reference, ours = pair(name)

    @QUICK
    @given(text=TEXTS)
    @example(text="")
    @example(text=" ")
    @example(text="  a")
    @example(text=TEXT)
    def check(text: str) -> None:
        assert ours.encode(text) == tuple(reference.encode(text).ids)

    check()


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_decoded_as_the_library_does(name: str) -> None:
    reference, ours = pair(name)
    size = reference.get_vocab_size()

    @QUICK
    @given(ids=st.lists(st.integers(0, size + 3), max_size=20))
    def check(ids: list[int]) -> None:
        assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True)

    check()


@pytest.mark.parametrize("name", FAMILIES)
def test_text_comes_back_token_by_token(name: str) -> None:
    _, ours = pair(name)
    prompt = ours.encode("The quick")
    following = ours.encode(" brown café 日本 😀 fox\n")
    stream = ours.stream(prompt)
    text = "".join(stream.push(token) for token in following) + stream.finish()
    assert ours.decode((*prompt, *following)) == ours.decode(prompt) + text


def test_the_demo_model_is_encoded_as_its_own_tokenizer_does() -> None:
    folder = resolve_model("pydoc-llama")
    own, ours = load_codec(folder), JsonTokenizer.open(folder / "tokenizer.json")
    assert own is not None
    lines = (folder / "validation.txt").read_text(encoding="utf-8").splitlines()
    for line in [*lines, *TEXT.splitlines(), "", "<|end|> <|begin|>"]:
        ids = own.encode(line)
        assert ours.encode(line) == ids
        assert ours.decode(ids) == own.decode(ids)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"type": "Unigram", "vocab": []}}, "model 'Unigram' is not supported"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": [], "dropout": 0.1}}, "dropout"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}, "merge 0"),
        ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "no vocabulary"),
        ({"normalizer": {"type": "BertNormalizer"}}, "normalizer 'BertNormalizer'"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre-tokenizer 'Whitespace'"),
        ({"decoder": {"type": "WordPiece"}}, "decoder 'WordPiece'"),
        ({"post_processor": {"type": "RobertaProcessing"}}, "'RobertaProcessing'"),
        ({"added_tokens": [{"id": 7}]}, "an added token makes no sense"),
        ({"normalizer": [1]}, "normalizer is no JSON object"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    data = json.loads(family("gpt2").to_str()) | change
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=message) as refusal:
        JsonTokenizer.open(path)
    assert str(path) in str(refusal.value)


def test_an_added_token_that_the_library_would_number_otherwise_is_refused() -> None:
    data = json.loads(family("gpt2").to_str())
    data["added_tokens"][-1]["id"] += 5
    with pytest.raises(InputError, match="has id"):
        JsonTokenizer(data)


def test_many_added_tokens_are_read_in_little_time() -> None:
    data = json.loads(family("gpt2").to_str())
    first = max(each["id"] for each in data["added_tokens"]) + 1
    first = max(first, len(data["model"]["vocab"]))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    data["added_tokens"] += [
        {"id": first + number, "content": f"<extra {number}>"} | flags for number in range(20_000)
    ]
    started = time.process_time()
    ours = JsonTokenizer(data)
    assert time.process_time() - started < 5
    assert ours.encode("<extra 19999>")[-1] == first + 19_999


@pytest.mark.parametrize("content", ["[]", "{", "\xff", "[" * 100_000])
def test_a_file_that_is_no_tokenizer_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        JsonTokenizer.open(path)


def test_half_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(InputError, match="character 2 is half of a surrogate pair"):
        pair("gpt2")[1].encode("ab\ud83d")


def test_the_older_form_of_merges_is_read() -> None:
    data = json.loads(family("llama3").to_str())
    merges = [" ".join(each) for each in data["model"]["merges"]]
    data["model"]["merges"] = ["#version: 0.2", *merges]
    assert JsonTokenizer(data).encode(TEXT) == pair("llama3")[1].encode(TEXT)


def test_a_long_word_is_merged_in_little_time() -> None:
    reference, ours = pair("llama2")
    text = unicodedata.normalize("NFC", TEXT).replace(" ", "") * 30
    assert ours.encode(text) == tuple(reference.encode(text).ids)
