"""Converts text to tokens and back, incrementally."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Self

from tapml_targets.errors import InputError

MAX_FILE_BYTES: Final = 64 << 20
_UNFINISHED: Final = "\ufffd"


class Codec(ABC):
    """Text to tokens and back."""

    @abstractmethod
    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Token ids of a prompt; with the begin token if `special` and the model has one."""

    @abstractmethod
    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of tokens, without begin and end tokens."""

    def stream(self, prompt: Iterable[int] = ()) -> TextStream:
        """Start to convert generated tokens to text; `prompt` is context, not output."""
        return TextStream(self, tuple(prompt))


class FileCodec(Codec):
    """A tokenizer that one file holds.

    Parameters
    ----------
    content
        The file's bytes, or its text.

    Raises
    ------
    InputError
        If it is too large or cannot be used.
    """

    @abstractmethod
    def __init__(self, content: bytes | str) -> None:
        if len(content) > MAX_FILE_BYTES:
            raise InputError(f"{len(content)} bytes: expected at most {MAX_FILE_BYTES}")

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read a file.

        Raises
        ------
        InputError
            If it cannot be read or used; the message names the file.
        """
        try:
            with path.open("rb") as stream:
                return cls(stream.read(MAX_FILE_BYTES + 1))
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from error
        except InputError as error:
            raise InputError(f"the tokenizer in {path} cannot be used: {error}") from error


def encoded(text: str) -> bytes:
    """The bytes of a prompt in UTF-8.

    Raises
    ------
    InputError
        If it contains half of a surrogate pair, which is not a character.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the prompt is not valid text: character {error.start} is half of a surrogate pair"
        ) from error


class TextCodec(Codec):
    """A model's tokenizer, from ``transformers``."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """See :meth:`Codec.encode`."""
        # Not verbose: whoever needs a text within the context checks it.
        found = self._tokenizer(text, add_special_tokens=special, verbose=False)
        return tuple(int(token) for token in found["input_ids"])

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of tokens, without begin and end tokens."""
        text = self._tokenizer.decode(
            [int(token) for token in token_ids],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        return str(text)

    def to_json_text(self) -> str | None:
        """A ``tokenizer.json`` of the tokenizer with its settings; None if it has no such form."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        return None if backend is None else str(backend.to_str())


class TextStream:
    """Converts tokens to text incrementally.

    A character can take several tokens, and a tokenizer can drop the space before a first word, so
    text is the difference of two decodings, held back while the last character is incomplete.
    """

    def __init__(self, codec: Codec, prompt: tuple[int, ...]) -> None:
        self._codec = codec
        # Some context before the new tokens preserves their leading space.
        self._pending = list(prompt[-8:])
        self._shown = codec.decode(self._pending)

    def push(self, token_id: int) -> str:
        """Text that the token completes, possibly empty."""
        self._pending.append(token_id)
        text = self._codec.decode(self._pending)
        if text.endswith(_UNFINISHED) or len(text) <= len(self._shown):
            return ""
        new = text[len(self._shown) :]
        self._pending = self._pending[-8:]
        self._shown = self._codec.decode(self._pending)
        return new

    def finish(self) -> str:
        """The pending text, with a replacement character for bytes that are not text."""
        text = self._codec.decode(self._pending)
        new = text[len(self._shown) :]
        self._shown = text
        return new
