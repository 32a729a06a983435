"""A tokenizer from its ``tokenizer.json``, read by the ``tokenizers`` library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tapml.models.text import FileCodec, encoded
from tapml_targets.errors import InputError
from tapml_targets.installed import install_hint


class JsonTokenizer(FileCodec):
    """A model's tokenizer, from the content of a ``tokenizer.json``.

    Raises
    ------
    InputError
        If it is too large, the library rejects it, or the library is not installed.
    """

    def __init__(self, content: bytes | str) -> None:
        super().__init__(content)
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

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Token ids of a prompt; with the begin token if `special` and the model has one.

        Raises
        ------
        InputError
            If the text contains half of a surrogate pair, which is not a character.
        """
        encoded(text)
        return tuple(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of tokens, without begin, end and other special tokens."""
        return str(self._tokenizer.decode([int(token) for token in token_ids]))

    def added_tokens(self) -> tuple[str, ...]:
        """Tokens that are matched before the text is split, in the order of their ids."""
        found = self._tokenizer.get_added_tokens_decoder()
        return tuple(found[token].content for token in sorted(found))
