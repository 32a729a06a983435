"""Blocks of GGUF's quantizations as packed weights, with the numbers that its dequantizer gives.

A row is a sequence of blocks of 32 columns, or of 256 for the K kinds, each with its own scales
(float16) and codes of 4, 6 or 8 bits. A scale of a K block is a product of two, computed in float32
as the dequantizer does. Source: ``gguf.quants``, which the tests hold this against.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from tapml.models.packed.weight import PackedWeight, pack

Array = npt.NDArray[Any]

_SUPER: Final = 256


def _split(data: Array, *widths: int) -> list[Array]:
    """Parts of each block, which is the last axis; the last part is the rest."""
    return np.split(data, np.cumsum(widths), axis=-1)


def _halves(part: Array) -> Array:
    """float16 values of bytes as float32."""
    return np.ascontiguousarray(part).view("<f2").astype(np.float32)


def _low_then_high(codes: Array) -> Array:
    """Low nibbles of a run of bytes, then the high ones."""
    return np.concatenate([codes & 15, codes >> 4], axis=-1)


def _packed(codes: Array, bits: int, zero: int, **parts: Array) -> PackedWeight:
    rows = len(codes)
    tensors: dict[str, Any] = {
        name: torch.from_numpy(each.reshape(rows, -1).copy()) for name, each in parts.items()
    }
    flat = torch.from_numpy(codes.reshape(rows, -1).astype(np.int32))
    return pack(flat, bits, zero, **tensors)


def _q8_0(data: Array) -> PackedWeight:
    scale, codes = _split(data, 2)
    return _packed(codes.view(np.int8).astype(np.int32) + 128, 8, 128, scales=_halves(scale))


def _q4_0(data: Array) -> PackedWeight:
    scale, codes = _split(data, 2)
    return _packed(_low_then_high(codes), 4, 8, scales=_halves(scale))


def _q4_1(data: Array) -> PackedWeight:
    scale, minimum, codes = _split(data, 2, 2)
    parts = {"scales": _halves(scale), "minimums": _halves(minimum)}
    return _packed(_low_then_high(codes), 4, 0, **parts)


def _q4_k(data: Array) -> PackedWeight:
    scale, minimum, six, codes = _split(data, 2, 2, 12)
    # Twelve bytes hold eight scales and eight minimums of six bits.
    first, second, third = _split(six, 4, 4)
    scales = np.concatenate([first & 63, third & 15 | first >> 2 & 48], axis=-1)
    minimums = np.concatenate([second & 63, third >> 4 | second >> 2 & 48], axis=-1)
    runs = codes.reshape(*codes.shape[:-1], 4, 32)
    return _packed(
        _low_then_high(runs),
        4,
        0,
        scales=_halves(scale) * scales.astype(np.float32),
        minimums=-(_halves(minimum) * minimums.astype(np.float32)),
    )


def _q6_k(data: Array) -> PackedWeight:
    low, high, scales, scale = _split(data, 128, 64, 16)
    halves = low.reshape(*low.shape[:-1], 2, 64)
    lower = _low_then_high(halves)
    pairs = high.reshape(*high.shape[:-1], 2, 32)
    upper = np.concatenate([pairs >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1)
    factors = _halves(scale) * np.ascontiguousarray(scales).view(np.int8).astype(np.float32)
    # Codes of six bits take eight: a word of 32 bits has no whole number of six.
    return _packed(lower | upper << 4, 8, 32, scales=factors)


KINDS: Final[dict[str, tuple[int, int, Callable[[Array], PackedWeight]]]] = {
    "Q8_0": (32, 34, _q8_0),
    "Q4_0": (32, 18, _q4_0),
    "Q4_1": (32, 20, _q4_1),
    "Q4_K": (_SUPER, 144, _q4_k),
    "Q6_K": (_SUPER, 210, _q6_k),
}
"""Columns and bytes of a block, and what reads blocks uint8 ``[N, blocks, bytes]``."""


def read_blocks(kind: str, data: Array) -> PackedWeight:
    """A packed weight from the bytes of its rows, uint8 ``[N, bytes of a row]``."""
    _, nbytes, read = KINDS[kind]
    return read(np.ascontiguousarray(data).reshape(len(data), -1, nbytes))
