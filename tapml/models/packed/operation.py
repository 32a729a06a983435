"""The one operation that reads packed weights: ``tapml::unpack_weight``.

Torch runs it, the importer translates it into a kernel function that is fused into the product that
reads its result (:mod:`tapml.importing.packed_weights`), and the torch forms of operators have it
written out in ATen operations, which the float64 oracle runs.

A row of K codes takes ``K * bits / 32`` words of 32 bits, the first code in the lowest bits. Words
are used because some devices have no smaller storage. A row has K / G scales, zeros and minimums,
for groups of G codes. Codes of 4 and 8 bits are unsigned integers, and with float32 arithmetic

    weight = (code - zero - zeros[group]) * scales[group] + minimums[group]

where parts that are absent are left out. Codes of 16 bits are floating-point numbers in their own
format and have no groups.
"""

from __future__ import annotations

import sys
from typing import Final

import torch
from torch import Tensor

NAME: Final = "tapml::unpack_weight"
WORD_BITS: Final = 32
HALF: Final = 0
BRAIN: Final = 1
"""The `zero` of codes of 16 bits: float16, or bfloat16."""


def codes_of(words: Tensor, bits: int) -> Tensor:
    """The unsigned codes, int32 ``[..., K]``, in words int32 ``[..., K * bits / 32]``."""
    shifts = torch.arange(0, WORD_BITS, bits, dtype=torch.int32)
    codes = (words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    return codes.flatten(-2)


def words_of(codes: Tensor, bits: int) -> Tensor:
    """The words of codes; the inverse of :func:`codes_of`."""
    per_word = WORD_BITS // bits
    shifts = torch.arange(0, WORD_BITS, bits, dtype=torch.int64)
    parts = codes.to(torch.int64).reshape(*codes.shape[:-1], -1, per_word) << shifts
    words = parts.sum(-1)
    # Above 2^31 a word is a negative integer with the same bits.
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


@torch.library.custom_op(NAME, mutates_args=())
def unpack_weight(
    codes: Tensor,
    scales: Tensor | None,
    zeros: Tensor | None,
    minimums: Tensor | None,
    bits: int,
    zero: int,
) -> Tensor:
    """Weights float32 ``[..., K]`` of packed codes.

    Parameters
    ----------
    codes
        Words, int32 ``[..., K * bits / 32]``.
    scales, zeros, minimums
        float32 ``[..., K / G]``; scales are None for codes of 16 bits alone.
    bits
        4, 8 or 16.
    zero
        The code of zero in all groups; with 16 bits :data:`HALF` or :data:`BRAIN`.
    """
    if scales is None:
        kind = torch.float16 if zero == HALF else torch.bfloat16
        return codes_of(codes, bits).to(torch.int16).view(kind).to(torch.float32)
    plain = _codes_in_bytes(codes, bits)
    # A large model spends its time here, so nothing is written twice.
    values = plain.to(torch.float32).reshape(*plain.shape[:-1], scales.shape[-1], -1)
    values -= zero
    if zeros is not None:
        values -= zeros.unsqueeze(-1)
    values *= scales.unsqueeze(-1)
    if minimums is not None:
        values += minimums.unsqueeze(-1)
    return values.flatten(-2)


def _codes_in_bytes(words: Tensor, bits: int) -> Tensor:
    """The same as :func:`codes_of` for 4 and 8 bits, as uint8 where words begin with low bits."""
    if sys.byteorder != "little":
        return codes_of(words, bits)
    pairs = words.contiguous().view(torch.uint8)
    return pairs if bits == 8 else torch.stack((pairs & 15, pairs >> 4), -1).flatten(-2)


@unpack_weight.register_fake
def _(
    codes: Tensor,
    scales: Tensor | None,
    zeros: Tensor | None,
    minimums: Tensor | None,
    bits: int,
    zero: int,
) -> Tensor:
    del scales, zeros, minimums, zero
    shape = (*codes.shape[:-1], codes.shape[-1] * (WORD_BITS // bits))
    return codes.new_empty(shape, dtype=torch.float32)
