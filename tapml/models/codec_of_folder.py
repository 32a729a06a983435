"""Finds the tokenizer of a model's folder by its files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tapml.models import sentencepiece_file, tiktoken_file
from tapml.models.checkpoint import read_json
from tapml.models.longest_match import VOCABULARY, LongestMatch
from tapml.models.said_by import said_by
from tapml.models.text import Codec, TextCodec
from tapml_targets.errors import InputError

_TOKENIZER_FILES: Final = ("tokenizer.json", "vocab.json", "vocab.txt")


def load_codec(folder: Path) -> Codec | None:
    """Tokenizer of a model folder; None if the folder has no tokenizer files.

    Raises
    ------
    InputError
        If there are tokenizer files that cannot be loaded.
    """
    if (folder / VOCABULARY).is_file():
        return LongestMatch.open(folder / VOCABULARY)
    published = _published(folder)
    if published is not None:
        from tokenizers import Tokenizer
        from transformers import PreTrainedTokenizerFast

        return TextCodec(PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(published)))
    if not folder.is_dir() or not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # libraries raise errors of any class on a malformed file
        reason = said_by(error)
        raise InputError(
            f"the tokenizer in {folder} cannot be loaded ({reason}): fetch its "
            "tokenizer.json again, or remove the tokenizer files and give token ids (--tokens)"
        ) from error
    return TextCodec(tokenizer)


def _published(folder: Path) -> str | None:
    """A ``tokenizer.json`` from a file that needs none of a folder's code; None without one."""
    if (folder / "tokenizer.json").is_file():
        return None
    if (folder / tiktoken_file.FILE).is_file():
        return tiktoken_file.tiktoken_json(folder / tiktoken_file.FILE)
    if (folder / sentencepiece_file.FILE).is_file():
        config = folder / "tokenizer_config.json"
        settings = read_json(config) if config.is_file() else {}
        return sentencepiece_file.sentencepiece_json(folder / sentencepiece_file.FILE, settings)
    return None
