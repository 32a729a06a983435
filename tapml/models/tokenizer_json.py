"""A tokenizer from its ``tokenizer.json``, with the base install alone.

What the ``tokenizers`` library does for byte pair encodings, as plain Python: byte level (GPT-2,
Llama 3, Qwen) and SentencePiece's with byte fallback (Llama 2, Mistral, TinyLlama). A package needs
it where neither that library nor ``transformers`` is installed; whether it agrees with the model's
own tokenizer is measured when a package is made. What it does not support it refuses by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tapml.models.text import TextStream
from tapml.models.tokenizer_added import AddedTokens, Part, read_added_tokens
from tapml.models.tokenizer_bpe import BytePairs
from tapml.models.tokenizer_steps import Piece, decoder, normalizer, splitter
from tapml_targets.errors import InputError

MAX_FILE_BYTES: Final = 64 << 20
_MAX_TOKENS: Final = 1 << 22
# Settings of the model that change what it does and have no counterpart here.
_UNSUPPORTED: Final = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")


class JsonTokenizer:
    """A model's tokenizer; does what :class:`tapml.models.text.TextCodec` does.

    Parameters
    ----------
    data
        What ``tokenizer.json`` holds.

    Raises
    ------
    InputError
        If it is malformed, or uses something that is not supported; the message names it.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._normalize = normalizer(_optional(data, "normalizer"))
        self._split = splitter(_optional(data, "pre_tokenizer"))
        self._decode = decoder(_optional(data, "decoder"))
        self._model = _byte_pairs(_optional(data, "model") or {})
        vocabulary = self._model.vocabulary
        added = data.get("added_tokens") or []
        if not isinstance(added, list):
            raise InputError("added_tokens are no list")
        tokens = read_added_tokens(added, vocabulary, self._normalize)
        self._verbatim = AddedTokens(each for each in tokens if not each.normalized)
        self._normalized = AddedTokens(each for each in tokens if each.normalized)
        self._before, self._after = _template(_optional(data, "post_processor"))
        special = {each.content for each in tokens if each.special}
        self._tokens = {number: text for text, number in vocabulary.items()}
        self._tokens |= {each.id: each.text for each in tokens}
        self._special = {number for number, text in self._tokens.items() if text in special}

    @classmethod
    def open(cls, path: Path) -> JsonTokenizer:
        """Read a file.

        Raises
        ------
        InputError
            If it cannot be read or is not supported; the message names the file.
        """
        try:
            size = path.stat().st_size
            if size > MAX_FILE_BYTES:
                raise InputError(f"{size} bytes: expected at most {MAX_FILE_BYTES}")
            return cls.read(path.read_bytes())
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from error
        except InputError as error:
            raise InputError(f"the tokenizer in {path} cannot be used: {error}") from error

    @classmethod
    def read(cls, content: bytes | str) -> JsonTokenizer:
        """Read a file's content.

        Raises
        ------
        InputError
            If it is not valid or not supported.
        """
        try:
            data = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise InputError(f"it is not valid JSON ({error}): fetch it again") from error
        if not isinstance(data, dict):
            raise InputError(f"it holds a {type(data).__name__}: expected a JSON object")
        return cls(data)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt, with the begin token where the model has one.

        Raises
        ------
        InputError
            If the text holds half of a surrogate pair, which is no character.
        """
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InputError(
                    f"the prompt is no text: character {error.start} is half of a surrogate pair"
                ) from error
        ids: list[int] = []
        for part in self._verbatim.split(Piece(text, first=True)):
            ids += [part] if isinstance(part, int) else self._encode_between(part)
        return (*self._before, *ids, *self._after)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of tokens; begin, end and other special tokens are left out."""
        known = (int(token) for token in token_ids)
        tokens = [
            self._tokens[token]
            for token in known
            if token in self._tokens and token not in self._special
        ]
        return "".join(self._decode(tokens))

    def stream(self, prompt: Iterable[int] = ()) -> TextStream:
        """Start turning generated tokens into text; `prompt` gives the context, not output."""
        return TextStream(self, tuple(prompt))

    def _encode_between(self, piece: Piece) -> list[int]:
        ids: list[int] = []
        normalized: list[Part] = list(
            self._normalized.split(Piece(self._normalize(piece.text), piece.first))
        )
        for part in normalized:
            if isinstance(part, int):
                ids.append(part)
                continue
            for word in self._split(part):
                ids += self._model.encode(word.text)
        return ids


def _optional(data: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    value = data.get(key)
    if value is not None and not isinstance(value, dict):
        raise InputError(f"{key} is no JSON object")
    return value


def _byte_pairs(data: Mapping[str, Any]) -> BytePairs:
    kind = data.get("type")
    if kind != "BPE":
        raise InputError(f"the model {str(kind)[:40]!r} is not supported, BPE is")
    used = [name for name in _UNSUPPORTED if data.get(name)]
    if used:
        raise InputError(f"the model's {', '.join(used)} is not supported")
    vocabulary, merges = data.get("vocab"), data.get("merges")
    if (
        not isinstance(vocabulary, dict)
        or not isinstance(merges, list)
        or len(vocabulary) > _MAX_TOKENS
        or len(merges) > _MAX_TOKENS
        or not all(type(number) is int and number >= 0 for number in vocabulary.values())
    ):
        raise InputError("the model has no vocabulary or no merges")
    unknown = data.get("unk_token")
    if unknown is not None and (not isinstance(unknown, str) or unknown not in vocabulary):
        raise InputError(f"the unknown token {str(unknown)[:40]!r} is not in the vocabulary")
    return BytePairs(
        vocabulary,
        _merges(merges, vocabulary),
        unknown=None if unknown is None else vocabulary[unknown],
        fuse_unknown=data.get("fuse_unk") is True,
        byte_fallback=data.get("byte_fallback") is True,
        ignore_merges=data.get("ignore_merges") is True,
    )


def _merges(
    merges: list[Any], vocabulary: Mapping[str, int]
) -> dict[tuple[int, int], tuple[int, int]]:
    found: dict[tuple[int, int], tuple[int, int]] = {}
    # The older form is a line per merge, which may begin with the version of its file.
    lines = [each for each in merges if not (isinstance(each, str) and each[:8] == "#version")]
    for rank, entry in enumerate(lines):
        pair = entry.split(" ") if isinstance(entry, str) else entry
        try:
            first, second = pair
            found[vocabulary[first], vocabulary[second]] = rank, vocabulary[first + second]
        except (KeyError, ValueError, TypeError) as error:
            raise InputError(
                f"merge {rank} makes no sense or is not in the vocabulary: {str(entry)[:60]}"
            ) from error
    return found


def _template(data: Mapping[str, Any] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tokens that are put before and after those of the text."""
    match None if data is None else data.get("type"):
        case None | "ByteLevel":
            return (), ()
        case "Sequence":
            assert data is not None  # noqa: S101 - it has a type
            before: tuple[int, ...] = ()
            after: tuple[int, ...] = ()
            for each in data.get("processors") or ():
                first, last = _template(each if isinstance(each, dict) else {"type": "?"})
                before, after = first + before, after + last
            return before, after
        case "TemplateProcessing":
            assert data is not None  # noqa: S101 - it has a type
            return _pieces(data)
        case kind:
            raise InputError(f"the post-processor {str(kind)[:40]!r} is not supported")


def _pieces(data: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sides: list[list[int]] = [[]]
    special = data.get("special_tokens")
    for piece in data.get("single") or ():
        match piece:
            case {"Sequence": {"id": "A"}}:
                sides.append([])
            case {"SpecialToken": {"id": str(name)}} if isinstance(special, dict):
                entry = special.get(name)
                ids = entry.get("ids") if isinstance(entry, dict) else None
                if not isinstance(ids, list) or not all(type(each) is int for each in ids):
                    raise InputError(f"the template's token {name[:40]!r} has no ids")
                sides[-1] += ids
            case _:
                raise InputError(f"a piece of the template makes no sense: {str(piece)[:60]}")
    if len(sides) != 2:
        raise InputError("the template does not hold the text once")
    return tuple(sides[0]), tuple(sides[1])
