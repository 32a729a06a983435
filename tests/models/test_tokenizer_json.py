"""A ``tokenizer.json`` is bounded, read by the `tokenizers` library, and refused with a remedy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tapml.models import text
from tapml.models.codec_of_folder import load_codec
from tapml.models.resolve import resolve_model
from tapml.models.tokenizer_json import JsonTokenizer
from tapml_targets.errors import InputError
from tests.models.tokenizers import FAMILIES, TEXT, family


@pytest.mark.parametrize("name", FAMILIES)
def test_text_comes_back_token_by_token(name: str) -> None:
    codec = JsonTokenizer(family(name).to_str())
    prompt = codec.encode("The quick")
    following = codec.encode(" brown café 日本 😀 fox\n")
    stream = codec.stream(prompt)
    text = "".join(stream.push(token) for token in following) + stream.finish()
    assert codec.decode((*prompt, *following)) == codec.decode(prompt) + text


def test_the_demo_model_is_encoded_as_its_own_tokenizer_does() -> None:
    folder = resolve_model("pydoc-llama")
    own, codec = load_codec(folder), JsonTokenizer.open(folder / "tokenizer.json")
    assert own is not None
    lines = (folder / "validation.txt").read_text(encoding="utf-8").splitlines()
    for line in [*lines, *TEXT.splitlines(), "", "<|end|> <|begin|>"]:
        ids = own.encode(line)
        assert codec.encode(line) == ids
        assert codec.decode(ids) == own.decode(ids)


def test_truncation_in_the_file_cuts_no_prompt() -> None:
    tokenizer = Tokenizer.from_str(family("llama3").to_str())
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9)
    line = "a line of more than three tokens, and of more than nine"
    expected = family("llama3").encode(line).ids
    assert list(JsonTokenizer(tokenizer.to_str()).encode(line)) == expected


def test_added_tokens_are_those_of_the_file() -> None:
    assert JsonTokenizer(family("qwen").to_str()).added_tokens() == (
        "<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>", "<think>",
    )  # fmt: skip


@pytest.mark.parametrize("content", ["[]", "{", "\xff", "[" * 100_000, "{}"])
def test_a_file_that_is_no_tokenizer_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(InputError, match=r"tokenizer\.json cannot be used: .* --tokens|--tokens"):
        JsonTokenizer.open(path)


def test_a_file_beyond_the_bound_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = family("llama3").to_str()
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    JsonTokenizer.open(path)
    monkeypatch.setattr(text, "MAX_FILE_BYTES", 100)
    with pytest.raises(InputError, match="expected at most 100"):
        JsonTokenizer.open(path)
    with pytest.raises(InputError, match="expected at most 100"):
        JsonTokenizer(content)


def test_a_file_that_is_absent_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*tokenizer\.json"):
        JsonTokenizer.open(tmp_path / "tokenizer.json")


def test_half_a_surrogate_pair_is_refused_as_text() -> None:
    with pytest.raises(InputError, match="character 2 is half of a surrogate pair"):
        JsonTokenizer(family("gpt2").to_str()).encode("ab\ud83d")


def test_a_missing_library_is_named_with_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "tokenizers.py").write_text("raise ImportError('not here')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from tapml.models.tokenizer_json import JsonTokenizer\n"
        "from tapml_targets.errors import InputError\n"
        "try: JsonTokenizer('{}')\n"
        "except InputError as error: print(error)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert "install tapml[run] (pip install" in ended.stdout
    assert "--tokens" in ended.stdout
