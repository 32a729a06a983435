"""``tokenizer.model``, SentencePiece's file, as a ``tokenizer.json``.

Folders of Llama's kind (Baichuan, InternLM) have only this file, and some the code that reads it,
which never runs. The file is a protobuf of three levels, of which a few fields matter, so it is
read here; merging is that of a GGUF file with the same tokenizer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tapml.models.gguf.tokenizer import tokenizer_json
from tapml.models.text import MAX_FILE_BYTES
from tapml_targets.errors import InputError

FILE: Final = "tokenizer.model"
# Numbers of fields in sentencepiece_model.proto.
_PIECE, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _KIND = 1, 2, 3
_MODEL_KIND, _UNKNOWN_ID, _BEGIN_ID, _END_ID = 3, 40, 41, 42
_CHARACTERS, _SPACE_BEFORE, _FEWER_SPACES = 2, 3, 4
_PAIRS: Final = 2
_KINDS: Final = {1: "unigram", 3: "word", 4: "character"}
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_LONGEST_VARINT: Final = 10


def sentencepiece_json(path: Path, settings: Mapping[str, Any]) -> str:
    """The tokenizer in a file as the library ``tokenizers`` stores it.

    Parameters
    ----------
    path
        The file.
    settings
        Of ``tokenizer_config.json``: ``add_bos_token`` decides about a begin token.

    Raises
    ------
    InputError
        If the file is damaged, too large, or of a kind that is no merging of pairs.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise InputError(f"{path} is larger than {MAX_FILE_BYTES} bytes: fetch it again")
    try:
        return _json(data, settings, path)
    except (IndexError, struct.error, UnicodeDecodeError, TypeError) as error:
        raise InputError(f"{path} is no SentencePiece model ({error}): fetch it again") from error


def _json(data: bytes, settings: Mapping[str, Any], path: Path) -> str:
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in _fields(data):
        if number == _PIECE:
            own = dict(_fields(value))
            score = struct.unpack("<f", own[_SCORE])[0] if _SCORE in own else 0.0
            pieces.append((own.get(_TEXT, b"").decode(), score, int(own.get(_KIND, 1))))
        elif number == _TRAINER:
            trainer = dict(_fields(value))
        elif number == _NORMALIZER:
            normalizer = dict(_fields(value))
    kind = trainer.get(_MODEL_KIND, 1)
    if kind != _PAIRS:
        raise InputError(
            f"{path} is a {_KINDS.get(kind, kind)} model: expected one that merges pairs (BPE); "
            "put its tokenizer.json into the folder, or give token ids (--tokens)"
        )
    if normalizer.get(_CHARACTERS) or normalizer.get(_FEWER_SPACES, 1):
        raise InputError(
            f"{path} changes characters or spaces before it merges: put its tokenizer.json into "
            "the folder, or give token ids (--tokens)"
        )
    fields: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [text for text, _, _ in pieces],
        "tokenizer.ggml.scores": [score for _, score, _ in pieces],
        "tokenizer.ggml.token_type": [kind for _, _, kind in pieces],
        "tokenizer.ggml.unknown_token_id": trainer.get(_UNKNOWN_ID, 0),
        "tokenizer.ggml.add_space_prefix": bool(normalizer.get(_SPACE_BEFORE, 1)),
        "tokenizer.ggml.add_bos_token": settings.get("add_bos_token", True) is not False,
    }
    # Negative numbers are stored as large ones: there is no such token.
    begin = trainer.get(_BEGIN_ID, 1)
    if begin < len(pieces):
        fields["tokenizer.ggml.bos_token_id"] = begin
    found = tokenizer_json(fields)
    if found is None:
        raise InputError(f"{path} has no tokens: fetch it again")
    return found


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of a message: whole numbers, or bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        value: Any
        if kind == _VARINT:
            value, at = _varint(data, at)
        elif kind == _BYTES:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        elif kind in (_FOUR, _EIGHT):
            size = 4 if kind == _FOUR else 8
            value, at = data[at : at + size], at + size
        else:
            raise IndexError(f"a field of the kind {kind}")
        if at > len(data):
            raise IndexError("it ends inside a field")
        yield number, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(_LONGEST_VARINT):
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise IndexError("a number of more than ten bytes")
