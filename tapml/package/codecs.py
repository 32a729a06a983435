"""The tokenizer of a package: what is written when it is made, and read when it is run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tapml.models.codec_of_folder import load_codec
from tapml.models.longest_match import VOCABULARY, LongestMatch
from tapml.models.text import Codec, TextCodec
from tapml.models.tokenizer_json import JsonTokenizer
from tapml.package.manifest import TokenizerNote
from tapml_targets.errors import InputError

_SHOWN: Final = 60
_GIVE_TOKENS: Final = 'give token ids (--tokens "1 2 3")'


def packaged_tokenizer(
    model_folder: Path, texts: Sequence[str]
) -> tuple[TokenizerNote, bytes | None]:
    """A model's tokenizer as a package holds it.

    Parameters
    ----------
    model_folder
        Where the model was loaded from.
    texts
        What has to give the same tokens and the same text with the packaged tokenizer as with the
        model's own, which may do more than its file says.

    Returns
    -------
    note, content
        The content of the vocabulary of a longest match, or of ``tokenizer.json`` as the model's
        own tokenizer writes it: a folder without that file, or with settings beside it, gives one
        as well. None where there is none.

    Raises
    ------
    InputError
        If the folder has a tokenizer that cannot be loaded.
    """
    own = load_codec(model_folder)
    if own is None:
        return TokenizerNote("none", f"the model has no tokenizer: {_GIVE_TOKENS}"), None
    if isinstance(own, LongestMatch):
        note = TokenizerNote("longest-match", f"tapml reads the vocabulary {VOCABULARY}")
        return note, (model_folder / VOCABULARY).read_bytes()
    text = own.to_json_text() if isinstance(own, TextCodec) else None
    if text is None:
        missing = f"the model's tokenizer has no tokenizer.json: {_GIVE_TOKENS}"
        return TokenizerNote("none", missing), None
    if problem := _difference(own, JsonTokenizer(text), texts):
        return TokenizerNote("none", f"{_GIVE_TOKENS}: {problem}"), None
    equal = f"equal to the model's own on {len(texts)} texts"
    note = TokenizerNote("tokenizers", f"the `tokenizers` library reads tokenizer.json; {equal}")
    return note, text.encode()


def open_codec(note: TokenizerNote, content: bytes) -> Codec:
    """The tokenizer of a package.

    Raises
    ------
    InputError
        If the package takes token ids alone, its tokenizer cannot be read, or the library that
        reads it is not installed.
    """
    if note.reader == "none":
        raise InputError(f"the package takes no text: {note.text}")
    if note.reader == "longest-match":
        return LongestMatch(content)
    return JsonTokenizer(content)


def _difference(own: Codec, packaged: Codec, texts: Sequence[str]) -> str:
    """The first text that two tokenizers read differently; empty where there is none."""
    for text in texts:
        ids = own.encode(text)
        if packaged.encode(text) != ids or packaged.decode(ids) != own.decode(ids):
            return (
                "the model's own tokenizer does more than its tokenizer.json says "
                f"({text[:_SHOWN]!r})"
            )
    return ""
