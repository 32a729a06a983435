"""Who reads a package's tokenizer is found out by comparing, and said."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from tapml.models.resolve import resolve_model
from tapml.models.text import TextStream
from tapml.models.tokenizer_json import JsonTokenizer
from tapml.package.codecs import LibraryTokenizer, choose_reader, open_codec, packaged_tokenizer
from tapml.package.manifest import TokenizerNote
from tapml.package.sample_lines import sample_lines
from tapml_targets.errors import InputError
from tests.models.tokenizers import family


def with_whitespace() -> str:
    """A tokenizer that splits in a way that is not supported here."""
    tokenizer = Tokenizer.from_str(family("unknown").to_str())
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return str(tokenizer.to_str())


class Lowering(LibraryTokenizer):
    """A model's own tokenizer that does more than its file says."""

    def encode(self, text: str) -> tuple[int, ...]:
        return super().encode(text.lower())

    def stream(self, prompt: Iterable[int] = ()) -> TextStream:
        return TextStream(self, tuple(prompt))


def test_the_lines_are_some_hundred_and_varied() -> None:
    lines = sample_lines()
    assert len(lines) == len(set(lines)) > 250
    assert len(set("".join(lines))) > 350


def test_the_demo_models_tokenizer_is_read_here() -> None:
    note, content = packaged_tokenizer(resolve_model("pydoc-llama"), ("The value of",))
    assert note.reader == "tapml"
    assert f"equal to the model's own on {len(sample_lines()) + 1} lines" in note.text
    assert content is not None
    codec = open_codec(note, content)
    assert isinstance(codec, JsonTokenizer)
    assert codec.decode(codec.encode("The value of")) == "The value of"


def test_a_model_without_a_tokenizer_takes_token_ids(tmp_path: Path) -> None:
    note, content = packaged_tokenizer(tmp_path, ())
    assert (note.reader, content) == ("none", None)
    with pytest.raises(InputError, match="takes no text: the model has no tokenizer"):
        open_codec(note, b"")


def test_what_is_not_supported_here_is_read_by_the_library() -> None:
    text = with_whitespace()
    note = choose_reader(LibraryTokenizer(text), text, ())
    assert note.reader == "tokenizers"
    assert "the pre-tokenizer 'Whitespace' is not supported" in note.text
    codec = open_codec(note, text.encode())
    assert isinstance(codec, LibraryTokenizer)
    assert codec.encode("plain text") == tuple(Tokenizer.from_str(text).encode("plain text").ids)
    stream = codec.stream()
    ids = codec.encode("plain text")
    assert "".join(map(stream.push, ids)) + stream.finish() == codec.decode(ids)


def test_a_file_that_does_not_say_all_is_read_by_nobody() -> None:
    text = family("llama3").to_str()
    note = choose_reader(Lowering(text), text, ())
    assert note.reader == "none"
    assert "JsonTokenizer differs on" in note.text
    assert "LibraryTokenizer differs on" in note.text


def test_truncation_in_the_file_cuts_no_prompt() -> None:
    tokenizer = Tokenizer.from_str(family("llama3").to_str())
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9)
    text = tokenizer.to_str()
    line = "a line of more than three tokens, and of more than nine"
    expected = family("llama3").encode(line).ids
    assert list(LibraryTokenizer(text).encode(line)) == expected
    assert list(JsonTokenizer(json.loads(text)).encode(line)) == expected


def test_a_missing_library_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "tokenizers.py").write_text("raise ImportError('not here')")
    code = (
        "from tapml.package.codecs import open_codec\n"
        "from tapml.package.manifest import TokenizerNote\n"
        "from tapml_targets.errors import InputError\n"
        "try: open_codec(TokenizerNote('tokenizers', ''), b'{}')\n"
        "except InputError as error: print(error)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{code}"],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "pip install tokenizers" in ended.stdout
    assert "--tokens" in ended.stdout


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[1]"])
def test_a_tokenizer_that_is_none_is_refused(content: bytes) -> None:
    for reader in ("tapml", "tokenizers"):
        with pytest.raises(InputError):
            open_codec(TokenizerNote(reader, ""), content)
