"""Texts as the data of a language model: files, lines, and the model's own tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tapml.backends.runner import MASK, TOKENS, WRITTEN, WRITTEN_MASK, Array
from tapml.comparing.data_folders import CLASSES
from tapml_targets.errors import InputError

ENDING: Final = ".txt"
MOST_TOKENS: Final = 64
"""Of one text: the rest is left out."""
_LARGEST_BYTES: Final = 64 << 20


def read_texts(path: Path) -> list[str]:
    """The texts of a ``.txt`` file, one a line; or of a folder of such files, one a file.

    A folder's ``classes.txt`` is no text.

    Raises
    ------
    InputError
        If there is no text, or a file is too large or no UTF-8.
    """
    if path.is_dir():
        found = [_read(each) for each in sorted(path.glob(f"*{ENDING}")) if each.name != CLASSES]
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
    An encoder-decoder also gets ``decoder_token_ids`` and ``decoder_attention_mask``: what follows
    a tab in the text, else the text again, behind the token that starts it.

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
    start = _start_token(model)
    pairs = [each.partition("\t") if start is not None else (each, "", "") for each in texts]
    rows = [codec.encode(text)[:most] for text, _, _ in pairs]
    for (text, _, _), row in zip(pairs, rows, strict=True):
        if len(row) < 2:
            raise InputError(f"the text {text[:40]!r} has {len(row)} tokens; expected two or more")
    if start is None:
        return padded(rows)
    written = [[start, *codec.encode(target or text)][:most] for text, _, target in pairs]
    return padded(rows) | as_written(padded(written))


def _start_token(model: Path) -> int | None:
    """What the decoder of an encoder-decoder begins with; None for another model."""
    config = _config(model)
    if config.get("is_encoder_decoder") is not True:
        return None
    start = config.get("decoder_start_token_id", config.get("pad_token_id"))
    return start if isinstance(start, int) else 0


def check_tokens(arrays: Mapping[str, Array], model: Path) -> None:
    """Raise InputError for tokens that a language model does not have, or a mask unlike them."""
    size = _vocabulary(model)
    for name, masked in ((TOKENS, MASK), (WRITTEN, WRITTEN_MASK)):
        ids, mask = arrays.get(name), arrays.get(masked)
        if ids is None or ids.dtype.kind not in "iu" or size is None:
            continue
        if ids.min() < 0 or ids.max() >= size:
            raise InputError(
                f"{name} goes from {ids.min()} to {ids.max()}; {model.name} has {size} tokens, so "
                f"expected 0 to {size - 1}"
            )
        if mask is not None and mask.shape != ids.shape:
            raise InputError(f"{masked} has the shape {mask.shape}; expected {name}'s, {ids.shape}")
        if mask is not None and not (np.isin(mask, (0, 1)).all() and mask.any(axis=-1).all()):
            raise InputError(f"{masked} is 1 at the tokens of a text, one or more, and 0 elsewhere")


def with_masks(arrays: Mapping[str, Array], model: Path) -> dict[str, Array]:
    """The arrays, where tokens for a language model have no mask with one that leaves out none.

    Of an encoder it is an input.
    """
    found = dict(arrays)
    if _vocabulary(model) is not None:
        for name, masked in ((TOKENS, MASK), (WRITTEN, WRITTEN_MASK)):
            if name in found and masked not in found:
                found[masked] = np.ones(found[name].shape, np.int64)
    return found


def _config(model: Path) -> dict[str, Any]:
    try:
        config = json.loads((model / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _vocabulary(model: Path) -> int | None:
    size = _config(model).get("vocab_size")
    return size if isinstance(size, int) else None


def padded(rows: Sequence[Sequence[int]]) -> dict[str, Array]:
    """Token ids with 0 at the end, and the mask, see :func:`to_tokens`."""
    longest = max(map(len, rows))
    ids = np.zeros((len(rows), longest), np.int64)
    mask = np.zeros_like(ids)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = row
        mask[at, : len(row)] = 1
    return {TOKENS: ids, MASK: mask}


def as_written(tokens: Mapping[str, Array]) -> dict[str, Array]:
    """What :func:`padded` gave, as the text that a decoder reads beside a source."""
    return {WRITTEN: tokens[TOKENS], WRITTEN_MASK: tokens[MASK]}


def read_tokens(arrays: Mapping[str, Array]) -> tuple[Array | None, Array | None]:
    """The tokens that logits belong to, and their mask: of an encoder-decoder, what it writes."""
    name, masked = (WRITTEN, WRITTEN_MASK) if WRITTEN in arrays else (TOKENS, MASK)
    ids, mask = arrays.get(name), arrays.get(masked)
    # An input of a module may be called a mask, and be something else.
    return ids, mask if ids is None or mask is None or mask.shape == ids.shape else None
