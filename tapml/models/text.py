"""Converts text to tokens and back, incrementally."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

_UNFINISHED = "\ufffd"


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
