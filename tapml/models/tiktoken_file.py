"""A vocabulary of tiktoken's kind (``qwen.tiktoken``) as a ``tokenizer.json``.

The file has a token a line, in base64, and its rank. Text is cut by a pattern; within a piece the
neighbours whose joined bytes have the lowest rank go together first. That is merging of pairs, and
the pairs follow from the ranks: a token is made of the two that its bytes fall into when only lower
ranks are merged.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any, Final

from tapml.models.text import MAX_FILE_BYTES
from tapml_targets.errors import InputError

FILE: Final = "qwen.tiktoken"
# As Qwen publishes it: contractions, words, single digits, punctuation, spaces.
_CUT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Behind the ranks, in this order; 205 have no use yet.
_SPECIAL: Final = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    *(f"<|extra_{number}|>" for number in range(205)),
)
_BYTES: Final = 256


def tiktoken_json(path: Path) -> str:
    """The tokenizer in a file as the library ``tokenizers`` stores it.

    Raises
    ------
    InputError
        If the file is damaged or too large.
    """
    ranks = _ranks(path)
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    shown = _shown_bytes()

    def text(token: bytes) -> str:
        return "".join(shown[byte] for byte in token)

    merges = [
        (text(left), text(right))
        for token in ranks
        if len(token) > 1
        for left, right in [_halves(token, ranks, path)]
    ]
    try:
        model = models.BPE(vocab={text(each): rank for each, rank in ranks.items()}, merges=merges)
        tokenizer = Tokenizer(model)
    except Exception as error:  # the library raises Exception itself
        raise InputError(f"{path} is no vocabulary of pairs ({error}): fetch it again") from error
    cuts: list[Any] = [
        pre_tokenizers.Split(Regex(_CUT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(each, special=True, normalized=False) for each in _SPECIAL]
    )
    return str(tokenizer.to_str())


def _ranks(path: Path) -> dict[bytes, int]:
    """Tokens by rank, the lowest first."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise InputError(f"{path} is larger than {MAX_FILE_BYTES} bytes: fetch it again")
    found: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        try:
            token, rank = line.split()
            found[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise InputError(
                f"{path}, line {number}: expected a token in base64 and its rank ({error}); "
                "fetch it again"
            ) from error
    ordered = dict(sorted(found.items(), key=lambda item: item[1]))
    if sorted(ordered.values()) != list(range(len(ordered))) or any(
        bytes([byte]) not in ordered for byte in range(_BYTES)
    ):
        raise InputError(
            f"{path} has {len(ordered)} tokens: expected ranks from 0 without a gap, and every "
            "byte among them; fetch it again"
        )
    return ordered


def _halves(token: bytes, ranks: dict[bytes, int], path: Path) -> tuple[bytes, bytes]:
    """The last two parts of a token when only lower ranks are merged."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = ((ranks.get(parts[at] + parts[at + 1]), at) for at in range(len(parts) - 1))
        known = [(rank, at) for rank, at in pairs if rank is not None and rank < ranks[token]]
        if not known:
            raise InputError(
                f"{path}: token {ranks[token]} is no pair of lower ones: fetch it again"
            )
        _, at = min(known)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def _shown_bytes() -> dict[int, str]:
    """The character for each byte as GPT-2 chose them: a printable one stands for itself."""
    plain = [*range(33, 127), *range(161, 173), *range(174, _BYTES)]
    others = [byte for byte in range(_BYTES) if byte not in plain]
    shown = {byte: chr(byte) for byte in plain}
    return shown | {byte: chr(_BYTES + at) for at, byte in enumerate(others)}
