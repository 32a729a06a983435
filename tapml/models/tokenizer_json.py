"""A tokenizer from its ``tokenizer.json``, read by the ``tokenizers`` library."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tapml.models.text import Codec
from tapml_targets.errors import InputError
from tapml_targets.installed import install_hint

MAX_FILE_BYTES: Final = 64 << 20


class JsonTokenizer(Codec):
    """A model's tokenizer, from the content of a ``tokenizer.json``.

    Raises
    ------
    InputError
        If it is too large, the library rejects it, or the library is not installed.
    """

    def __init__(self, content: bytes | str) -> None:
        if len(content) > MAX_FILE_BYTES:
            raise InputError(f"{len(content)} bytes: expected at most {MAX_FILE_BYTES}")
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise InputError(
                "text needs the `tokenizers` library, which is not installed: install tapml[run] "
                f'({install_hint("run")}), or give token ids (--tokens "1 2 3")'
            ) from error
        text = content if isinstance(content, str) else content.decode(errors="replace")
        try:
            self._tokenizer: Any = Tokenizer.from_str(text)
        except Exception as error:  # the library raises Exception itself
            raise InputError(
                f"the `tokenizers` library cannot read it ({error}): fetch it again, or give "
                'token ids (--tokens "1 2 3")'
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    @classmethod
    def open(cls, path: Path) -> JsonTokenizer:
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

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Token ids of a prompt; with the begin token if `special` and the model has one.

        Raises
        ------
        InputError
            If the text contains half of a surrogate pair, which is not a character.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"the prompt is not valid text: character {error.start} is half of a surrogate pair"
            ) from error
        return tuple(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of tokens, without begin, end and other special tokens."""
        return str(self._tokenizer.decode([int(token) for token in token_ids]))

    def added_tokens(self) -> tuple[str, ...]:
        """Tokens that are matched before the text is split, in the order of their ids."""
        found = self._tokenizer.get_added_tokens_decoder()
        return tuple(found[token].content for token in sorted(found))
