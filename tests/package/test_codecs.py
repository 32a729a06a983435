"""The tokenizer of a package is the model's own, as its ``tokenizer.json`` says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tapml.models.codec_of_folder import load_codec
from tapml.models.resolve import resolve_model
from tapml.models.text import TextCodec
from tapml.package import codecs
from tapml.package.codecs import open_codec, packaged_tokenizer
from tapml.package.manifest import TokenizerNote
from tapml.package.sample_lines import sample_lines
from tapml_targets.errors import InputError


def test_the_lines_are_some_hundred_and_varied() -> None:
    lines = sample_lines()
    assert len(lines) == len(set(lines)) > 250
    assert len(set("".join(lines))) > 350


def test_the_demo_models_tokenizer_goes_with_its_package() -> None:
    note, content = packaged_tokenizer(resolve_model("pydoc-llama"), ("The value of", "é"))
    assert note.reader == "tokenizers"
    assert "equal to the model's own on 2 texts" in note.text
    assert content is not None
    codec = open_codec(note, content)
    assert codec.decode(codec.encode("The value of")) == "The value of"


def test_a_model_without_a_tokenizer_takes_token_ids(tmp_path: Path) -> None:
    note, content = packaged_tokenizer(tmp_path, ())
    assert (note.reader, content) == ("none", None)
    with pytest.raises(InputError, match="takes no text: the model has no tokenizer"):
        open_codec(note, b"")


def test_a_tokenizer_that_does_more_than_its_file_says_is_not_packaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Lowering(TextCodec):
        def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
            return super().encode(text.lower(), special=special)

    own = load_codec(resolve_model("pydoc-llama"))
    assert isinstance(own, TextCodec)
    monkeypatch.setattr(codecs, "load_codec", lambda _: Lowering(own._tokenizer))
    note, content = packaged_tokenizer(Path("model"), ("lower", "Upper"))
    assert (note.reader, content) == ("none", None)
    assert "does more than its tokenizer.json says ('Upper')" in note.text


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[1]"])
def test_a_tokenizer_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(InputError, match="cannot read it"):
        open_codec(TokenizerNote("tokenizers", ""), content)
