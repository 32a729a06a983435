"""Nodes of the domain ``com.microsoft`` written out: what onnxruntime's optimizer leaves in a file.

Files that it has optimized, and models of its tools for transformers, have them. Source:
onnxruntime, ``docs/ContribOperators.md``, and its kernels for the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from tapml.models.onnx_written import At, refused

_FLOAT: Final = 1
_LOWEST: Final = -1e30


def _activated(at: At, value: str) -> str:
    """What an attribute ``activation`` makes of a value."""
    name = (at.given.get("activation") or b"").decode()
    parameters = list(at.given.get("activation_params") or ())
    if not name:
        return value
    if name in ("Relu", "Sigmoid", "Tanh"):
        return at.written.one(name, value)
    if name == "LeakyRelu":
        return at.written.one(name, value, alpha=parameters[0])
    if name == "HardSigmoid":
        return at.written.one(name, value, alpha=parameters[0], beta=parameters[1])
    if name == "Clip":
        return at.written.one(name, value, *map(at.number, parameters))
    raise refused(at.node, f"activation {name}")


def _biased(at: At) -> str:
    """The first input, with the second added if there is one."""
    value = at.node.input[0]
    return at.written.one("Add", value, at.node.input[1]) if at.has(1) else value


def _gelu_of(at: At, value: str) -> str:
    one = at.written.one
    erf = one("Erf", one("Mul", value, at.number(math.sqrt(0.5))))
    half = one("Mul", value, at.number(0.5))
    return one("Mul", half, one("Add", erf, at.number(1.0)))


def _gelu(at: At) -> list[str]:
    return [_gelu_of(at, _biased(at))]


def _fast_gelu(at: At) -> list[str]:
    one, value = at.written.one, _biased(at)
    cube = one("Mul", one("Mul", value, value), value)
    inner = one("Add", value, one("Mul", cube, at.number(0.044715)))
    curve = one("Tanh", one("Mul", inner, at.number(math.sqrt(2 / math.pi))))
    return [one("Mul", one("Mul", value, at.number(0.5)), one("Add", curve, at.number(1.0)))]


def _quick_gelu(at: At) -> list[str]:
    one, value = at.written.one, at.node.input[0]
    scaled = one("Mul", value, at.number(float(at.given.get("alpha", 1.702))))
    return [one("Mul", value, one("Sigmoid", scaled))]


def _transposed(at: At, place: int, name: str) -> str:
    """An input with its last two axes exchanged where an attribute asks for it."""
    value = str(at.node.input[place])
    if at.given.get(f"transBatch{name[-1]}"):
        raise refused(at.node, f"transBatch{name[-1]} = 1: expected 0")
    rank = len(at.shape(place))
    if not at.given.get(name) or rank < 2:
        return value
    order = [*range(rank - 2), rank - 1, rank - 2]
    return at.written.one("Transpose", value, perm=order)


def _fused_matmul(at: At) -> list[str]:
    left, right = _transposed(at, 0, "transA"), _transposed(at, 1, "transB")
    product = at.written.one("MatMul", left, right)
    alpha = float(at.given.get("alpha", 1.0))
    if alpha != 1:
        product = at.written.one("Mul", product, at.number(alpha))
    return [_activated(at, product)]


def _fused_conv(at: At) -> list[str]:
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    given = {name: at.given[name] for name in names if name in at.given}
    value = at.written.one("Conv", *at.node.input[: 3 if at.has(2) else 2], **given)
    if at.has(3):
        value = at.written.one("Add", value, at.node.input[3])
    return [_activated(at, value)]


def _fused_gemm(at: At) -> list[str]:
    names = ("alpha", "beta", "transA", "transB")
    given = {name: at.given[name] for name in names if name in at.given}
    return [_activated(at, at.written.one("Gemm", *at.node.input, **given))]


def _mean(at: At, value: str) -> str:
    """The mean of the last axis, which stays."""
    if at.written.opset < _AXES_OF_MEAN:
        return at.written.one("ReduceMean", value, axes=[-1], keepdims=1)
    return at.written.one("ReduceMean", value, at.whole(-1), keepdims=1)


# ReduceMean takes its axes as an input from here on.
_AXES_OF_MEAN: Final = 18


def _normalized(
    at: At, value: str, weight: int, bias: int, *, centered: bool, epsilon: float = 1e-12
) -> str:
    """A layer norm, or a norm by the root mean square, over the last axis.

    `weight` and `bias` are the places of inputs, `epsilon` is what counts where the node has none.
    """
    one = at.written.one
    least = at.number(float(at.given.get("epsilon", epsilon)), weight)
    if centered:
        value = one("Sub", value, _mean(at, value))
    square = _mean(at, one("Mul", value, value))
    root = one("Sqrt", one("Add", square, least))
    scaled = one("Mul", one("Div", value, root), at.node.input[weight])
    return one("Add", scaled, at.node.input[bias]) if centered and at.has(bias) else scaled


def _skip_norm(at: At, *, centered: bool) -> list[str]:
    total = at.written.one("Add", *at.node.input[:2])
    place = 4 if centered else 3
    if at.has(place):
        total = at.written.one("Add", total, at.node.input[place])
    # Mean and inverse deviation, which training alone reads, are in between.
    return [_normalized(at, total, 2, 3, centered=centered), "", "", total]


def _root_mean_square_norm(at: At) -> list[str]:
    if int(at.given.get("axis", -1)) not in (-1, len(at.shape(0)) - 1):
        raise refused(at.node, "an axis before the last: expected the last")
    return [_normalized(at, at.node.input[0], 1, 2, centered=False, epsilon=1e-5)]


def _embedding_norm(at: At) -> list[str]:
    one, inputs = at.written.one, at.node.input
    if len(at.node.output) > 1 and at.node.output[1] and at.has(7):
        raise refused(at.node, "it counts the places of a mask: export the model unoptimized")
    places = inputs[8] if at.has(8) else at.whole(*range(at.shape(0)[1]))
    total = one("Add", one("Gather", inputs[2], inputs[0]), one("Gather", inputs[3], places))
    if at.has(4) and at.has(1):
        total = one("Add", total, one("Gather", inputs[4], inputs[1]))
    # The second is the length of each sentence, which is 0 without a mask.
    zeros = at.written.weight(np.zeros(at.shape(0)[:1], np.int32))
    return [_normalized(at, total, 5, 6, centered=True), zeros, total]


def _attended(at: At, parts: list[str], sizes: tuple[int, int, int], mask: str | None) -> str:
    """Softmax of products, times values: three of ``[batch, length, heads * size]``.

    `sizes` are the batch, the heads and the size of a head; `mask` is added to the scores.
    """
    one, (batch, heads, size) = at.written.one, sizes
    cut = [at.reshaped(part, (batch, -1, heads, size)) for part in parts]
    queries, values = (one("Transpose", cut[place], perm=[0, 2, 1, 3]) for place in (0, 2))
    scores = one("MatMul", queries, one("Transpose", cut[1], perm=[0, 2, 3, 1]))
    scores = one("Mul", scores, at.number(float(at.given.get("scale") or 1 / math.sqrt(size))))
    if mask is not None:
        scores = one("Add", scores, mask)
    mixed = one("MatMul", one("Softmax", scores, axis=-1), values)
    return at.reshaped(one("Transpose", mixed, perm=[0, 2, 1, 3]), (batch, -1, heads * size))


def _mask(at: At, place: int, added: int, rows: int, columns: int) -> str | None:
    """What is added to the scores: of a mask of places, and of the input at `added`."""
    one, total = at.written.one, None
    if at.has(place):
        shape = at.shape(place)
        batch = at.shape(0)[0]
        if shape not in ((batch, columns), (batch, rows, columns)):
            raise refused(at.node, f"a mask of the shape {shape}: expected {(batch, columns)}")
        wide = (batch, 1, *(shape[1:] if len(shape) == 3 else (1, columns)))
        kept = one("Cast", at.reshaped(at.node.input[place], wide), to=_FLOAT)
        lowest = float(at.given.get("mask_filter_value") or -10000.0)
        lost = one("Sub", at.written.weight(np.array(1, np.float32)), kept)
        total = one("Mul", lost, at.written.weight(np.array(lowest, np.float32)))
        if at.dtype(0) != np.float32:
            total = one("Cast", total, to=at.element(at.dtype(0)))
    if at.has(added):
        total = at.node.input[added] if total is None else one("Add", total, at.node.input[added])
    if at.given.get("unidirectional"):
        future = np.triu(np.full((rows, columns), _LOWEST, at.dtype(0)), 1 + columns - rows)
        ahead = at.written.weight(future)
        total = ahead if total is None else one("Add", total, ahead)
    return total


def _attention(at: At) -> list[str]:
    """Self-attention with one product for queries, keys and values."""
    if at.has(4) or any(at.node.output[1:]) or at.given.get("do_rotary"):
        raise refused(at.node, "a past of keys and values, or rotary positions in it")
    one, heads, (batch, length, _) = at.written.one, int(at.given["num_heads"]), at.shape(0)
    widths = list(at.given.get("qkv_hidden_sizes") or ())
    width = at.shape(1)[-1] // 3
    if widths and set(widths) != {width}:
        raise refused(at.node, f"qkv_hidden_sizes {widths}: expected three of {width}")
    product = one("MatMul", at.node.input[0], at.node.input[1])
    if at.has(2):
        product = one("Add", product, at.node.input[2])
    parts = at.written.parts(product, [width] * 3, 2)
    mask = _mask(at, 3, 5, length, length)
    return [_attended(at, parts, (batch, heads, width // heads), mask)]


def _multi_head_attention(at: At) -> list[str]:
    """Attention of queries, keys and values that are there, each of one row for a place."""
    one, heads, shape = at.written.one, int(at.given["num_heads"]), at.shape(0)
    if not (at.has(1) and at.has(2)) or at.has(6) or any(at.node.output[1:]):
        raise refused(at.node, "packed inputs, or a past of keys and values")
    if {len(shape), len(at.shape(1)), len(at.shape(2))} != {3} or at.shape(2)[-1] != shape[-1]:
        raise refused(at.node, "heads of keys and values of other sizes than of queries")
    parts = list(at.node.input[:3])
    if at.has(3):
        biases = at.written.parts(at.node.input[3], [shape[-1]] * 3, 0)
        parts = [one("Add", part, bias) for part, bias in zip(parts, biases, strict=True)]
    mask = _mask(at, 4, 5, shape[1], at.shape(1)[1])
    return [_attended(at, parts, (shape[0], heads, shape[-1] // heads), mask)]


def _matmul_of_bits(at: At) -> list[str]:
    """A product with a matrix of four or eight bits in blocks along its rows."""
    given, codes, scales = at.given, at.constant(1), at.constant(2)
    rows, columns, bits, block = (int(given[each]) for each in ("N", "K", "bits", "block_size"))
    zeros = at.constant(3) if at.has(3) else None
    missing = codes is None or scales is None or (at.has(3) and zeros is None) or at.has(4)
    if missing or codes is None or scales is None or bits not in (4, 8):
        raise refused(at.node, f"{bits} bits, an order of columns, or codes that are computed")
    blocks = -(-columns // block)

    def unpacked(words: Any, count: int) -> Any:
        flat = words.reshape(rows, -1)
        if bits == 4:
            flat = np.stack([flat & 15, flat >> 4], axis=-1).reshape(rows, -1)
        return flat[:, :count].astype(np.float32)

    wide = unpacked(codes, blocks * block).reshape(rows, blocks, block)
    scale = scales.astype(np.float32).reshape(rows, blocks, 1)
    if zeros is None:
        offset: Any = np.float32(1 << bits - 1)
    elif zeros.dtype == np.uint8:
        offset = unpacked(zeros, blocks).reshape(rows, blocks, 1)
    else:
        offset = zeros.astype(np.float32).reshape(rows, blocks, 1)
    matrix = ((wide - offset) * scale).reshape(rows, -1)[:, :columns]
    weight = at.written.weight(matrix.T.astype(at.dtype(0)))
    product = at.written.one("MatMul", at.node.input[0], weight)
    return [at.written.one("Add", product, at.node.input[5]) if at.has(5) else product]


def _bias_split_gelu(at: At) -> list[str]:
    """Half of the columns, times the gelu of the other half."""
    half = at.shape(0)[-1] // 2
    left, right = at.written.parts(_biased(at), [half, half], -1)
    return [at.written.one("Mul", left, _gelu_of(at, right))]


MICROSOFT: Final[Mapping[str, Callable[[At], list[str]]]] = {
    "Attention": _attention,
    "BiasGelu": _gelu,
    "BiasSplitGelu": _bias_split_gelu,
    "EmbedLayerNormalization": _embedding_norm,
    "FastGelu": _fast_gelu,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "Gelu": _gelu,
    "MatMulNBits": _matmul_of_bits,
    "MultiHeadAttention": _multi_head_attention,
    "QuickGelu": _quick_gelu,
    "SimplifiedLayerNormalization": _root_mean_square_norm,
    "SkipLayerNormalization": lambda at: _skip_norm(at, centered=True),
    "SkipSimplifiedLayerNormalization": lambda at: _skip_norm(at, centered=False),
}
"""Writers by operator."""
