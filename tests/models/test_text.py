from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapml.models import resolve_model
from tapml.models.codec_of_folder import load_codec
from tapml.models.text import TextCodec
from tapml.models.tokenizer_json import JsonTokenizer


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    found = load_codec(resolve_model("pydoc-llama"))
    assert isinstance(found, TextCodec)
    return found


@settings(deadline=None)
@given(prompt=st.text(max_size=20), text=st.text(max_size=40))
def test_streamed_text_is_the_text(codec: TextCodec, prompt: str, text: str) -> None:
    tokens = codec.encode(text)
    stream = codec.stream(codec.encode(prompt))
    assert "".join([*(stream.push(token) for token in tokens), stream.finish()]) == text


@settings(deadline=None)
@given(tokens=st.lists(st.integers(0, 1999), max_size=30))
def test_streamed_tokens_end_as_their_text(codec: TextCodec, tokens: list[int]) -> None:
    stream = codec.stream()
    streamed = "".join([*(stream.push(token) for token in tokens), stream.finish()])
    assert streamed == codec.decode(tokens)


def test_a_character_is_not_shown_in_parts(codec: TextCodec) -> None:
    tokens = codec.encode("naïve 🦙 text")
    stream = codec.stream()
    parts = [stream.push(token) for token in tokens]
    assert len(parts) > len([part for part in parts if part])
    assert all("\ufffd" not in part for part in parts)


def test_a_folder_without_tokenizer_files_has_no_codec(tmp_path: Path) -> None:
    assert load_codec(tmp_path) is None


def test_a_list_of_words_alone_is_a_tokenizer(tmp_path: Path) -> None:
    """What older folders of BERT's kind have in place of a ``tokenizer.json``."""
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "value", "##s", "of"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    codec = load_codec(tmp_path)
    assert isinstance(codec, TextCodec)
    assert codec.encode("The values of it") == (2, 5, 6, 7, 8, 1, 3)
    assert codec.decode([2, 5, 6, 7, 8, 3]) == "the values of"
    content = codec.to_json_text()
    assert content is not None
    assert JsonTokenizer(content).encode("The values of it") == (2, 5, 6, 7, 8, 1, 3)
