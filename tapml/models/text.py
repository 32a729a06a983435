"""Text to tokens and back, a token at a time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from tapml_targets.errors import InputError

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_UNFINISHED = "\ufffd"


class Decodes(Protocol):
    """What turns tokens into text: a :class:`TextCodec`, a tokenizer of a package."""

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of tokens; begin and end tokens are left out."""


class TextCodec:
    """A model's tokenizer.

    Parameters
    ----------
    tokenizer
        A ``transformers`` tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt, with the begin token where the model has one."""
        return tuple(int(token) for token in self._tokenizer(text)["input_ids"])

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of tokens; begin and end tokens are left out."""
        text = self._tokenizer.decode(
            [int(token) for token in token_ids],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        return str(text)

    def to_json_text(self) -> str | None:
        """A ``tokenizer.json`` of the tokenizer as it is used; None where it cannot be one."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        return None if backend is None else str(backend.to_str())

    def stream(self, prompt: Iterable[int] = ()) -> TextStream:
        """Start turning generated tokens into text; `prompt` gives the context, not output."""
        return TextStream(self, tuple(prompt))


class TextStream:
    """Turns tokens into text as they come.

    A character can take several tokens, and a tokenizer can drop the space before a first word, so
    text is the difference of two decodings, held back while the last character is unfinished.
    """

    def __init__(self, codec: Decodes, prompt: tuple[int, ...]) -> None:
        self._codec = codec
        # Some context before the new tokens keeps their leading space; all of it is not needed.
        self._pending = list(prompt[-8:])
        self._shown = codec.decode(self._pending)

    def push(self, token_id: int) -> str:
        """Text that the token completes, possibly none."""
        self._pending.append(token_id)
        text = self._codec.decode(self._pending)
        if text.endswith(_UNFINISHED) or len(text) <= len(self._shown):
            return ""
        new = text[len(self._shown) :]
        self._pending = self._pending[-8:]
        self._shown = self._codec.decode(self._pending)
        return new

    def finish(self) -> str:
        """What was held back, with a replacement character for bytes that are no text."""
        text = self._codec.decode(self._pending)
        new = text[len(self._shown) :]
        self._shown = text
        return new


def load_codec(folder: Path) -> TextCodec | None:
    """Tokenizer of a model folder, None where the folder has no tokenizer files.

    Raises
    ------
    InputError
        If there are tokenizer files that cannot be loaded.
    """
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # whatever a library raises on a malformed file
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f"the tokenizer in {folder} cannot be loaded ({reason[0][:300]}): fetch its "
            "tokenizer.json again, or remove the tokenizer files and give token ids (--tokens)"
        ) from error
    return TextCodec(tokenizer)
