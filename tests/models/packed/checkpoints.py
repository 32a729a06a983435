"""Quantized layers written and unpacked by hand, one code at a time, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

ROWS, COLUMNS, GROUP = 16, 64, 16
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


class Written(NamedTuple):
    """A layer's tensors, its ``quantization_config``, and the matrix float32 ``[N, K]``."""

    tensors: dict[str, Array]
    config: dict[str, Any]
    matrix: Array


def _random(group: int = GROUP, bits: int = 4) -> tuple[Array, Array, Array]:
    """Codes ``[N, K]``, scales float16 and zeros ``[N, groups]``; the last group may be shorter."""
    random = np.random.default_rng(5)
    groups = -(-COLUMNS // group)
    codes = random.integers(0, 1 << bits, (ROWS, COLUMNS))
    scales = random.uniform(0.01, 0.2, (ROWS, groups)).astype(np.float16)
    return codes, scales, random.integers(0, 1 << bits, (ROWS, groups))


def word(codes: list[int]) -> int:
    """A signed word of codes that fill it, the first in the lowest bits."""
    value = 0
    for place, code in enumerate(codes):
        value |= int(code) << (32 // len(codes) * place)
    return value - (1 << 32) if value >= 1 << 31 else value


def packed(codes: Array, order: tuple[int, ...] = tuple(range(8))) -> Array:
    """Words of neighbours along the last axis, eight or four; `order` says which comes where."""
    size = len(order)
    rows = [
        [word([row[at + each] for each in order]) for at in range(0, len(row), size)]
        for row in codes.tolist()
    ]
    return np.array(rows, np.int32)


def _matrix(codes: Array, scales: Array, zeros: Array, group_of: Array) -> Array:
    """``scale * (code - zero)``, element by element."""
    matrix = np.zeros(codes.shape, np.float32)
    for n, k in np.ndindex(*codes.shape):
        g = group_of[k]
        matrix[n, k] = np.float32(scales[n, g]) * np.float32(int(codes[n, k]) - int(zeros[n, g]))
    return matrix


def gptq(
    version: int = 1,
    *,
    symmetric: bool = False,
    act_order: bool = False,
    group: int = GROUP,
    dynamic: dict[str, Any] | None = None,
    bits: int = 4,
) -> Written:
    """GPTQ; version 1 stores one less than the zero."""
    codes, scales, zeros = _random(group, bits)
    places = tuple(range(32 // bits))
    if symmetric:
        zeros = np.full_like(zeros, 1 << bits - 1)
    group_of = np.arange(COLUMNS) // group
    if act_order:
        group_of = np.random.default_rng(6).permutation(group_of)
    stored = (zeros - 1) % (1 << bits) if version == 1 else zeros
    tensors = {
        "qweight": np.ascontiguousarray(packed(codes, places).T),
        "qzeros": packed(stored.T, places),
        "scales": np.ascontiguousarray(scales.T),
        "g_idx": group_of.astype(np.int32),
    }
    config = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": GROUP if dynamic else group,
        "desc_act": act_order,
        "checkpoint_format": "gptq" if version == 1 else "gptq_v2",
        "dynamic": dynamic,
    }
    return Written(tensors, config, _matrix(codes, scales, zeros, group_of))


def awq(group: int = GROUP) -> Written:
    """AWQ in the layout of its ``gemm`` kernels."""
    codes, scales, zeros = _random(group)
    tensors = {
        "qweight": packed(codes.T, AWQ_ORDER),
        "qzeros": packed(zeros.T, AWQ_ORDER),
        "scales": np.ascontiguousarray(scales.T),
    }
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm"}
    return Written(tensors, config, _matrix(codes, scales, zeros, np.arange(COLUMNS) // group))


def compressed_tensors(
    *, symmetric: bool = True, act_order: bool = False, group: int = GROUP, bits: int = 4
) -> Written:
    """compressed-tensors, ``pack-quantized``."""
    codes, scales, zeros = _random(group, bits)
    places = tuple(range(32 // bits))
    group_of = np.arange(COLUMNS) // group
    if symmetric:
        zeros = np.full_like(zeros, 1 << bits - 1)
    tensors: dict[str, Array] = {
        "weight_packed": packed(codes, places),
        "weight_scale": scales,
        "weight_shape": np.array([ROWS, COLUMNS], np.int64),
    }
    if not symmetric:
        tensors["weight_zero_point"] = np.ascontiguousarray(packed(zeros.T, places).T)
    if act_order:
        group_of = np.random.default_rng(6).permutation(group_of)
        tensors["weight_g_idx"] = group_of.astype(np.int32)
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "group_size": group}
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": weights}},
    }
    return Written(tensors, config, _matrix(codes, scales, zeros, group_of))


WRITTEN: dict[str, Callable[[], Written]] = {
    "gptq v1": gptq,
    "gptq v1, symmetric": lambda: gptq(symmetric=True),
    "gptq v1, act-order": lambda: gptq(act_order=True),
    "gptq v2": lambda: gptq(2),
    "gptq v1, 8 bits, act-order": lambda: gptq(act_order=True, bits=8),
    "gptq v2, 8 bits, symmetric": lambda: gptq(2, symmetric=True, bits=8),
    "gptq v2, act-order": lambda: gptq(2, act_order=True),
    "gptq, a last group of 16 after two of 24": lambda: gptq(act_order=True, group=24),
    "gptq, one group longer than a row": lambda: gptq(group=128),
    "gptq, groups of this layer": lambda: gptq(
        group=32, dynamic={"-:.*down": {}, r"+:layers\.\d+\.up": {"group_size": 32}}
    ),
    "awq": awq,
    "awq, a last group of 16 after two of 24": lambda: awq(24),
    "compressed-tensors": compressed_tensors,
    "compressed-tensors, asymmetric": lambda: compressed_tensors(symmetric=False),
    "compressed-tensors, 8 bits": lambda: compressed_tensors(bits=8),
    "compressed-tensors, 8 bits, asymmetric, act-order": lambda: compressed_tensors(
        symmetric=False, act_order=True, bits=8
    ),
    "compressed-tensors, act-order": lambda: compressed_tensors(symmetric=False, act_order=True),
    "compressed-tensors, a last group of 16": lambda: compressed_tensors(
        symmetric=False, act_order=True, group=24
    ),
}
