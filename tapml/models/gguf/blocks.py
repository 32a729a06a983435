"""Blocks of GGUF's quantizations as packed weights, with the numbers that its dequantizer gives.

A row is a sequence of blocks of 32 columns, or of 256 for the K kinds, each with its own scales
(float16) and codes of 2 to 8 bits. A scale of a K block is a product of two, computed in float32
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


def _fifth_bits(words: Array) -> Array:
    """The fifth bit of each of 32 codes, from the bits of a word, in its place."""
    bits = np.ascontiguousarray(words).view("<u4") >> np.arange(32, dtype=np.uint32)
    return (bits & 1).astype(np.uint8) << 4


def _q5_0(data: Array) -> PackedWeight:
    scale, high, codes = _split(data, 2, 4)
    # Codes of five bits take eight: a word of 32 bits has no whole number of five.
    return _packed(_low_then_high(codes) | _fifth_bits(high), 8, 16, scales=_halves(scale))


def _q5_1(data: Array) -> PackedWeight:
    scale, minimum, high, codes = _split(data, 2, 2, 4)
    parts = {"scales": _halves(scale), "minimums": _halves(minimum)}
    return _packed(_low_then_high(codes) | _fifth_bits(high), 8, 0, **parts)


def _parts_of_k(scale: Array, minimum: Array, six: Array) -> dict[str, Array]:
    """Scales and minimums of eight groups; twelve bytes hold a factor of six bits of each."""
    first, second, third = _split(six, 4, 4)
    scales = np.concatenate([first & 63, third & 15 | first >> 2 & 48], axis=-1)
    minimums = np.concatenate([second & 63, third >> 4 | second >> 2 & 48], axis=-1)
    return {
        "scales": _halves(scale) * scales.astype(np.float32),
        "minimums": -(_halves(minimum) * minimums.astype(np.float32)),
    }


def _q4_k(data: Array) -> PackedWeight:
    scale, minimum, six, codes = _split(data, 2, 2, 12)
    runs = codes.reshape(*codes.shape[:-1], 4, 32)
    return _packed(_low_then_high(runs), 4, 0, **_parts_of_k(scale, minimum, six))


def _q5_k(data: Array) -> PackedWeight:
    scale, minimum, six, high, codes = _split(data, 2, 2, 12, 32)
    lower = _low_then_high(codes.reshape(*codes.shape[:-1], 4, 32))
    # Bit b of byte c is of code c in run b.
    bits = np.stack([high >> run & 1 for run in range(8)], axis=-2)
    whole = lower.reshape(bits.shape) | bits << 4
    return _packed(whole, 8, 0, **_parts_of_k(scale, minimum, six))


def _two_bits(codes: Array) -> Array:
    """Codes of two bits: four runs of each 32 bytes, from the lowest bits on."""
    runs = codes.reshape(*codes.shape[:-1], -1, 32)
    return np.concatenate([runs >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1)


def _q2_k(data: Array) -> PackedWeight:
    both, codes, scale, minimum = _split(data, 16, 64, 2)
    return _packed(
        _two_bits(codes),
        4,
        0,
        scales=_halves(scale) * (both & 15).astype(np.float32),
        minimums=-(_halves(minimum) * (both >> 4).astype(np.float32)),
    )


def _q3_k(data: Array) -> PackedWeight:
    high, codes, six, scale = _split(data, 32, 64, 12)
    low, upper = _split(six, 8)
    fours = np.concatenate([low & 15, low >> 4], axis=-1)
    twos = np.concatenate([upper >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1)
    factors = (fours | twos << 4).astype(np.float32) - 32
    # Where the bit is not set, 4 is taken from the code.
    bits = np.concatenate([high >> run & 1 for run in range(8)], axis=-1)
    lower = _two_bits(codes).reshape(bits.shape)
    return _packed(lower | bits << 2, 4, 4, scales=_halves(scale) * factors)


# Codes of IQ4 and of MXFP4 are places in a table of whole numbers, which eight bits hold.
_IQ4: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_MXFP4: Final = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _from_table(places: Array, table: tuple[int, ...], scales: Array) -> PackedWeight:
    codes = (np.array(table, np.int32) + 128)[places]
    return _packed(codes, 8, 128, scales=scales)


def _iq4_nl(data: Array) -> PackedWeight:
    scale, codes = _split(data, 2)
    return _from_table(_low_then_high(codes), _IQ4, _halves(scale))


def _iq4_xs(data: Array) -> PackedWeight:
    scale, high, low, codes = _split(data, 2, 2, 4)
    fours = np.stack([low & 15, low >> 4], axis=-1).reshape(*low.shape[:-1], 8)
    shifts = np.arange(0, 16, 2, dtype=np.uint16)
    twos = (np.ascontiguousarray(high).view("<u2") >> shifts & 3).astype(np.uint8)
    factors = (fours | twos << 4).astype(np.float32) - 32
    runs = codes.reshape(*codes.shape[:-1], 8, 16)
    return _from_table(_low_then_high(runs), _IQ4, _halves(scale) * factors)


def _mxfp4(data: Array) -> PackedWeight:
    exponent, codes = _split(data, 1)
    power = exponent.astype(np.uint32)
    # Half of two to the exponent, since the table has twice the values.
    small = np.uint32(0x00200000) << np.minimum(power, 1)
    bits = np.where(power < 2, small, (np.maximum(power, 1) - 1) << np.uint32(23))
    return _from_table(_low_then_high(codes), _MXFP4, bits.astype("<u4").view(np.float32))


def _q6_k(data: Array) -> PackedWeight:
    low, high, scales, scale = _split(data, 128, 64, 16)
    halves = low.reshape(*low.shape[:-1], 2, 64)
    lower = _low_then_high(halves)
    upper = _two_bits(high)
    factors = _halves(scale) * np.ascontiguousarray(scales).view(np.int8).astype(np.float32)
    # Codes of six bits take eight: a word of 32 bits has no whole number of six.
    return _packed(lower | upper << 4, 8, 32, scales=factors)


KINDS: Final[dict[str, tuple[int, int, Callable[[Array], PackedWeight]]]] = {
    "Q8_0": (32, 34, _q8_0),
    "Q4_0": (32, 18, _q4_0),
    "Q4_1": (32, 20, _q4_1),
    "Q5_0": (32, 22, _q5_0),
    "Q5_1": (32, 24, _q5_1),
    "IQ4_NL": (32, 18, _iq4_nl),
    "MXFP4": (32, 17, _mxfp4),
    "Q2_K": (_SUPER, 84, _q2_k),
    "Q3_K": (_SUPER, 110, _q3_k),
    "Q4_K": (_SUPER, 144, _q4_k),
    "Q5_K": (_SUPER, 176, _q5_k),
    "Q6_K": (_SUPER, 210, _q6_k),
    "IQ4_XS": (_SUPER, 136, _iq4_xs),
}
"""Columns and bytes of a block, and what reads blocks uint8 ``[N, blocks, bytes]``."""


def read_blocks(kind: str, data: Array) -> PackedWeight:
    """A packed weight from the bytes of its rows, uint8 ``[N, bytes of a row]``."""
    _, nbytes, read = KINDS[kind]
    return read(np.ascontiguousarray(data).reshape(len(data), -1, nbytes))
