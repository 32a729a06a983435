"""Texts as the data of a language model: files, lines, and the model's own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from tapml.backends.runner import Array
from tapml_targets.errors import InputError

ENDING: Final = ".txt"
TOKENS: Final = "token_ids"
MASK: Final = "attention_mask"
MOST_TOKENS: Final = 64
"""Of one text: the rest is left out."""
_LARGEST_BYTES: Final = 64 << 20


def read_texts(path: Path) -> list[str]:
    """The texts of a ``.txt`` file, one a line; or of a folder of such files, one a file.

    Raises
    ------
    InputError
        If there is no text, or a file is too large or no UTF-8.
    """
    if path.is_dir():
        found = [_read(each) for each in sorted(path.glob(f"*{ENDING}"))]
    else:
        found = _read(path).splitlines()
    texts = [each.strip() for each in found if each.strip()]
    if not texts:
        raise InputError(f"{path} holds no text")
    return texts


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise InputError(f"{path} is larger than {_LARGEST_BYTES} bytes")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no text in UTF-8 ({error})") from error


def to_tokens(texts: Sequence[str], model: Path, most: int = MOST_TOKENS) -> dict[str, Array]:
    """The texts in tokens of a model's folder, cut to `most`, and padded with 0 at the end.

    ``token_ids`` and ``attention_mask`` are int64 ``[texts, tokens]``; the mask is 1 at the tokens.

    Raises
    ------
    InputError
        If the folder has no tokenizer, or a text is shorter than two tokens.
    """
    from tapml.models.codec_of_folder import load_codec

    codec = load_codec(model) if model.is_dir() else None
    if codec is None:
        raise InputError(
            f"{model.name} has no tokenizer, so it takes no text: expected the folder of a "
            f"language model with its tokenizer, or an .npz file with {TOKENS} as --data"
        )
    rows = [codec.encode(each)[:most] for each in texts]
    for text, row in zip(texts, rows, strict=True):
        if len(row) < 2:
            raise InputError(f"the text {text[:40]!r} has {len(row)} tokens; expected two or more")
    return padded(rows)


def padded(rows: Sequence[Sequence[int]]) -> dict[str, Array]:
    """Token ids with 0 at the end, and the mask, see :func:`to_tokens`."""
    longest = max(map(len, rows))
    ids = np.zeros((len(rows), longest), np.int64)
    mask = np.zeros_like(ids)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = row
        mask[at, : len(row)] = 1
    return {TOKENS: ids, MASK: mask}
