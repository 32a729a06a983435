"""Finds the tokenizer of a model's folder by its files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tapml.models.longest_match import VOCABULARY, LongestMatch
from tapml.models.text import Codec, TextCodec
from tapml_targets.errors import InputError

_TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer.model", "vocab.json")


def load_codec(folder: Path) -> Codec | None:
    """Tokenizer of a model folder; None if the folder has no tokenizer files.

    Raises
    ------
    InputError
        If there are tokenizer files that cannot be loaded.
    """
    if (folder / VOCABULARY).is_file():
        return LongestMatch.open(folder / VOCABULARY)
    if not folder.is_dir() or not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # libraries raise errors of any class on a malformed file
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f"the tokenizer in {folder} cannot be loaded ({reason[0][:300]}): fetch its "
            "tokenizer.json again, or remove the tokenizer files and give token ids (--tokens)"
        ) from error
    return TextCodec(tokenizer)
