"""Who turns text into tokens when a package is run, decided when it is made.

Reading ``tokenizer.json`` here is preferred wherever it gave what the model's own tokenizer gives,
also where the ``tokenizers`` library is installed: then a package gives the same tokens everywhere,
and what was compared is what runs. The library is for tokenizers that are not supported here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

from tapml.models.text import TextStream, load_codec
from tapml.models.tokenizer_json import JsonTokenizer
from tapml.package.manifest import TokenizerNote
from tapml.package.sample_lines import sample_lines
from tapml_targets.errors import InputError

_SHOWN: Final = 60
_GIVE_TOKENS: Final = 'give token ids (--tokens "1 2 3")'


class Codec(Protocol):
    """What :class:`tapml.models.text.TextCodec` does."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt."""

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of tokens."""

    def stream(self, prompt: Iterable[int] = ()) -> TextStream:
        """Start turning generated tokens into text."""


class LibraryTokenizer:
    """A ``tokenizer.json`` as the ``tokenizers`` library reads it.

    Parameters
    ----------
    text
        The file's content.

    Raises
    ------
    InputError
        If the library is not installed or does not take it.
    """

    def __init__(self, text: str) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise InputError(
                "this package's tokenizer needs the `tokenizers` library: pip install tokenizers, "
                'or give token ids (--tokens "1 2 3")'
            ) from error
        try:
            self._tokenizer: Any = Tokenizer.from_str(text)
        except Exception as error:  # the library raises Exception itself
            raise InputError(f"the `tokenizers` library cannot read it ({error})") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    @classmethod
    def open(cls, path: Path) -> LibraryTokenizer:
        """Read a file.

        Raises
        ------
        InputError
            If it cannot be read, or the library is not installed or does not take it.
        """
        try:
            return cls(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {path}: {error}") from error

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt, with the begin token where the model has one."""
        return tuple(self._tokenizer.encode(text).ids)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of tokens; begin, end and other special tokens are left out."""
        return str(self._tokenizer.decode([int(token) for token in token_ids]))

    def stream(self, prompt: Iterable[int] = ()) -> TextStream:
        """Start turning generated tokens into text; `prompt` gives the context, not output."""
        return TextStream(self, tuple(prompt))


def packaged_tokenizer(
    model_folder: Path, prompts: Sequence[str]
) -> tuple[TokenizerNote, bytes | None]:
    """A model's tokenizer as a package holds it, and who reads it there.

    Parameters
    ----------
    model_folder
        Where the model was loaded from.
    prompts
        Texts to compare on beside the built-in lines.

    Returns
    -------
    note, content
        The content of ``tokenizer.json``, as the model's own tokenizer writes it: a folder without
        that file, or with settings beside it, gives one as well. None where there is none.

    Raises
    ------
    InputError
        If the folder has a tokenizer that cannot be loaded.
    """
    own = load_codec(model_folder)
    if own is None:
        return TokenizerNote("none", f"the model has no tokenizer: {_GIVE_TOKENS}"), None
    text = own.to_json_text()
    if text is None:
        note = f"the model's tokenizer has no tokenizer.json: {_GIVE_TOKENS}"
        return TokenizerNote("none", note), None
    chosen = choose_reader(own, text, prompts)
    return chosen, None if chosen.reader == "none" else text.encode()


def choose_reader(own: Codec, text: str, prompts: Sequence[str]) -> TokenizerNote:
    """Compare the readers of a tokenizer with the model's own.

    Parameters
    ----------
    own
        The model's tokenizer.
    text
        Its ``tokenizer.json``.
    prompts
        Texts beside the built-in lines (:func:`tapml.package.sample_lines.sample_lines`).
    """
    lines = tuple(dict.fromkeys((*prompts, *sample_lines())))
    expected = [(ids := own.encode(line), own.decode(ids)) for line in lines]
    try:
        problem = _difference(JsonTokenizer.read(text), lines, expected)
    except InputError as error:
        problem = f"tapml cannot read it: {error}"
    if not problem:
        return TokenizerNote(
            "tapml", f"tapml reads tokenizer.json; equal to the model's own on {len(lines)} lines"
        )
    if find_spec("tokenizers") is not None:
        try:
            second = _difference(LibraryTokenizer(text), lines, expected)
        except InputError as error:
            second = str(error)
        if not second:
            return TokenizerNote(
                "tokenizers",
                "the `tokenizers` library has to be installed (pip install tokenizers), or token "
                f"ids given (--tokens): {problem}",
            )
        problem += f"; {second}"
    return TokenizerNote("none", f"{_GIVE_TOKENS}: {problem}")


def open_codec(note: TokenizerNote, content: bytes) -> Codec:
    """The reader that a package names.

    Raises
    ------
    InputError
        If the package takes token ids alone, or what it needs is not installed.
    """
    if note.reader == "tokenizers":
        return LibraryTokenizer(content.decode(errors="replace"))
    if note.reader == "tapml":
        return JsonTokenizer.read(content)
    raise InputError(f"the package takes no text: {note.text}")


def _difference(
    codec: Codec, lines: Sequence[str], expected: Sequence[tuple[tuple[int, ...], str]]
) -> str:
    """Where a reader differs first from the model's own; empty where it does not."""
    differing: list[str] = []
    for line, (ids, text) in zip(lines, expected, strict=True):
        found = codec.encode(line)
        if found != ids or codec.decode(ids) != text:
            differing.append(line)
    if not differing:
        return ""
    kind = type(codec).__name__
    return f"{kind} differs on {len(differing)} of {len(lines)} lines ({differing[0][:_SHOWN]!r})"
