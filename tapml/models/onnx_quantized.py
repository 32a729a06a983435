"""Quantized nodes of an ONNX model written out: sums of whole numbers, and one rounding at the end.

``QLinear*`` take and give quantized tensors with their scales and zero points. Products are summed
as whole numbers, which float32 holds exactly up to 2^24, scaled, rounded to even, and kept within
the range of the result's dtype. Other nodes are computed on the numbers that the codes stand for.
Source: ONNX's and onnxruntime's definitions of the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from tapml.models.onnx_written import At, refused

_FLOAT: Final = 1
_INT32: Final = 6


def _codes(at: At, place: int, zero: int, axis: int | None = None) -> str:
    """Codes less their zero point, as float32; the zero point is of an axis if it has several."""
    value = at.written.one("Cast", at.node.input[place], to=_FLOAT)
    if zero >= len(at.node.input) or not at.node.input[zero]:
        return value
    return at.written.one("Sub", value, _column(at, zero, len(at.shape(place)), axis))


def _column(at: At, place: int, rank: int, axis: int | None) -> str:
    """A number, or one for each place along an axis, as float32."""
    value = at.written.one("Cast", at.node.input[place], to=_FLOAT)
    if axis is None or int(np.prod(at.shape(place))) == 1:
        return at.reshaped(value, ())
    shape = [1] * rank
    shape[axis] = -1
    return at.reshaped(value, shape)


def _rounded(at: At, value: str, scale: str, zero: str) -> str:
    """Codes of numbers: divided by the scale, rounded to even, moved, and kept in range.

    One node of one operation: bounds that are written out repeat what comes before, and so the
    kernel of a convolution with its activation would be too long to compile.
    """
    return at.written.one("QuantizeLinear", value, scale, *filter(None, [zero]))


def _requantized(at: At, total: str, places: tuple[int, ...], axis: int, rank: int) -> list[str]:
    """A sum of products times the scales of its factors over that of the result, as codes."""
    left, right, result, zero = places
    one = at.written.one
    scale = one("Mul", _column(at, left, rank, None), _column(at, right, rank, axis))
    ratio = one("Div", scale, _column(at, result, rank, None))
    value = one("Mul", total, ratio)
    unit = at.written.weight(np.array(1, np.float32))
    return [_rounded(at, value, unit, _single(at, zero))]


def _conv(at: At) -> list[str]:
    left, right = _codes(at, 0, 2), _codes(at, 3, 5, 0)
    total = at.written.one("Conv", left, right, **_convolution(at))
    rank = len(at.shape(0))
    if len(at.node.input) > 8 and at.node.input[8]:
        bias = at.written.one("Cast", at.node.input[8], to=_FLOAT)
        total = at.written.one("Add", total, at.reshaped(bias, [1, -1, *[1] * (rank - 2)]))
    return _requantized(at, total, (1, 4, 6, 7), 1, rank)


def _convolution(at: At) -> dict[str, Any]:
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    return {name: at.given[name] for name in names if name in at.given}


def _matmul(at: At) -> list[str]:
    rank = len(at.shape(3))
    total = at.written.one("MatMul", _codes(at, 0, 2), _codes(at, 3, 5, rank - 1))
    return _requantized(at, total, (1, 4, 6, 7), -1, max(rank, len(at.shape(0))))


def _whole_conv(at: At) -> list[str]:
    total = at.written.one("Conv", _codes(at, 0, 2), _codes(at, 1, 3, 0), **_convolution(at))
    return [at.written.one("Cast", total, to=_INT32)]


def _whole_matmul(at: At) -> list[str]:
    rank = len(at.shape(1))
    left = _codes(at, 0, 2, len(at.shape(0)) - 2)
    total = at.written.one("MatMul", left, _codes(at, 1, 3, rank - 1))
    return [at.written.one("Cast", total, to=_INT32)]


def _numbers(at: At, place: int) -> str:
    """The numbers of codes at `place`, before their scale and zero point."""
    return at.written.one("Mul", _codes(at, place, place + 2), _column(at, place + 1, 0, None))


def _result(at: At, value: str, scale: int) -> list[str]:
    """Codes of numbers, by the scale and the zero point at `scale`."""
    has_zero = scale + 1 < len(at.node.input) and bool(at.node.input[scale + 1])
    zero = _single(at, scale + 1) if has_zero else ""
    return [_rounded(at, value, _column(at, scale, 0, None), zero)]


def _single(at: At, place: int) -> str:
    """The zero point of a whole tensor, without axes."""
    return at.reshaped(at.node.input[place], ())


def _pair(operator: str) -> Callable[[At], list[str]]:
    def write(at: At) -> list[str]:
        return _result(at, at.written.one(operator, _numbers(at, 0), _numbers(at, 3)), 6)

    return write


def _each(write: Callable[[At, str], str]) -> Callable[[At], list[str]]:
    """A node that takes one quantized tensor."""
    return lambda at: _result(at, write(at, _numbers(at, 0)), 3)


def _average(at: At, value: str) -> str:
    _only_channels_first(at)
    return at.written.one("GlobalAveragePool", value)


def _pool(at: At, value: str) -> str:
    _only_channels_first(at)
    names = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
    given = {name: at.given[name] for name in names if name in at.given}
    return at.written.one("AveragePool", value, **given)


def _only_channels_first(at: At) -> None:
    if at.given.get("channels_last"):
        raise refused(at.node, "channels_last = 1: expected 0; quantize the model without it")


def _softmax(at: At) -> list[str]:
    value = at.written.one("Softmax", _numbers(at, 0), axis=int(at.given.get("axis", -1)))
    return _result(at, value, 3)


def _concat(at: At) -> list[str]:
    places = range(2, len(at.node.input), 3)
    joined = at.written.joined([_numbers(at, place) for place in places], int(at.given["axis"]))
    return _result(at, joined, 0)


def _gemm(at: At) -> list[str]:
    """``alpha * A B + C``, of quantized A and B; C counts by the products of their scales."""
    one, given = at.written.one, at.given
    left, right = _codes(at, 0, 2), _codes(at, 3, 5, 0 if given.get("transB") else 1)
    if given.get("transA"):
        left = one("Transpose", left, perm=[1, 0])
    if given.get("transB"):
        right = one("Transpose", right, perm=[1, 0])
    total = one("MatMul", left, right)
    if len(at.node.input) > 6 and at.node.input[6]:
        total = one("Add", total, one("Cast", at.node.input[6], to=_FLOAT))
    scale = one("Mul", _column(at, 1, 2, None), _column(at, 4, 2, 1))
    value = one("Mul", total, scale)
    if given.get("alpha", 1.0) != 1:
        value = one("Mul", value, at.written.weight(np.array(given["alpha"], np.float32)))
    if len(at.node.input) <= 7 or not at.node.input[7]:
        return [value]
    return _result(at, value, 7)


def _dynamic_codes(at: At) -> list[str]:
    """Codes of 8 bits with a scale and a zero point by the largest and the smallest number.

    The scale of zeros alone is 1, as onnxruntime has it.
    """
    one, value = at.written.one, at.node.input[0]
    zero, steps, unit = (at.written.weight(np.array(each, np.float32)) for each in (0, 255, 1))
    flat = at.reshaped(value, (-1,))
    bounds = [
        one(side, one("ReduceMin" if side == "Min" else "ReduceMax", flat, keepdims=0), zero)
        for side in ("Min", "Max")
    ]
    found = one("Div", one("Sub", bounds[1], bounds[0]), steps)
    scale = one("Where", one("Equal", found, zero), unit, found)
    offset = _rounded(at, one("Neg", bounds[0]), scale, "")
    return [_rounded(at, value, scale, offset), scale, offset]


def _dynamic_matmul(at: At) -> list[str]:
    """A quantized on the way, times the numbers of B."""
    codes, scale, zero = at.written.several("DynamicQuantizeLinear", [at.node.input[0]], 3)
    one = at.written.one
    left = one("Sub", one("Cast", codes, to=_FLOAT), one("Cast", zero, to=_FLOAT))
    return _scaled_matmul(at, left, scale, (1, 2, 3, 4))


def _matmul_to_float(at: At) -> list[str]:
    left = _codes(at, 0, 4)
    return _scaled_matmul(at, left, at.node.input[2], (1, 3, 5, 6))


def _scaled_matmul(at: At, left: str, scale: str, places: tuple[int, ...]) -> list[str]:
    matrix, of_matrix, zero, bias = places
    one, rank = at.written.one, len(at.shape(matrix))
    total = one("MatMul", left, _codes(at, matrix, zero, rank - 1))
    total = one("Mul", total, one("Mul", scale, _column(at, of_matrix, rank, -1)))
    if bias < len(at.node.input) and at.node.input[bias]:
        total = one("Add", total, at.node.input[bias])
    return [total]


QUANTIZED: Final[Mapping[str, Callable[[At], list[str]]]] = {
    "ConvInteger": _whole_conv,
    "DynamicQuantizeLinear": _dynamic_codes,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "MatMulInteger": _whole_matmul,
    "MatMulIntegerToFloat": _matmul_to_float,
    "QGemm": _gemm,
    "QLinearAdd": _pair("Add"),
    "QLinearAveragePool": _each(_pool),
    "QLinearConcat": _concat,
    "QLinearConv": _conv,
    "QLinearGlobalAveragePool": _each(_average),
    "QLinearLeakyRelu": _each(
        lambda at, value: at.written.one(
            "LeakyRelu", value, alpha=float(at.given.get("alpha", 0.01))
        )
    ),
    "QLinearMatMul": _matmul,
    "QLinearMul": _pair("Mul"),
    "QLinearSigmoid": _each(lambda at, value: at.written.one("Sigmoid", value)),
    "QLinearSoftmax": _softmax,
}
"""Writers by operator, of ONNX's own domain and of ``com.microsoft``."""
