"""What each operation of a step computes, on numpy arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def _erf(values: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(values), dtype=np.float64)


def _sigmoid(values: Array) -> Array:
    # Of a negative exponent only: exp(-x) of -1000 overflows, and the result has no digits lost.
    small = np.exp(-np.abs(values))
    return np.asarray(np.where(values >= 0, 1.0, small) / (1.0 + small))


def _truncmod(left: Array, right: Array) -> Array:
    return np.asarray(np.fmod(left, np.where(right == 0, 1, right)))


def _floordiv(left: Array, right: Array) -> Array:
    return np.asarray(np.floor_divide(left, np.where(right == 0, 1, right)))


def _floormod(left: Array, right: Array) -> Array:
    return np.asarray(np.mod(left, np.where(right == 0, 1, right)))


def _divided(left: Array, right: Array) -> Array:
    if left.dtype.kind in "iu" and right.dtype.kind in "iu":
        return np.asarray(np.trunc(left / np.where(right == 0, 1, right)).astype(left.dtype))
    return np.asarray(np.divide(left, right))


def _rounded_half_away(values: Array) -> Array:
    return np.asarray(np.copysign(np.floor(np.abs(values) + 0.5), values))


FUNCTIONS: Final[dict[str, Callable[..., Array]]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divided,
    "truncmod": _truncmod,
    "floordiv": _floordiv,
    "floormod": _floormod,
    "min": np.minimum,
    "max": np.maximum,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "select": np.where,
    "exp": np.exp,
    "exp2": np.exp2,
    "exp10": lambda x: np.power(10.0, x),
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "pow": np.power,
    "tanh": np.tanh,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "atan2": np.arctan2,
    "hypot": np.hypot,
    "fmod": np.fmod,
    "copysign": np.copysign,
    "ldexp": lambda x, e: np.ldexp(x, e.astype(np.int64)),
    "sigmoid": _sigmoid,
    "erf": _erf,
    "fabs": np.abs,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": _rounded_half_away,
    "nearbyint": np.rint,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "likely": lambda x: x,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "bitwise_not": np.invert,
}
