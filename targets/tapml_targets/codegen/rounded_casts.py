"""Casts to bfloat16 that round where they stand, and the bits of such numbers.

TVM computes bfloat16 in float32 and rounds where it stores, so that a cast there and back inside
one kernel would be no cast at all, and the bits would be those of a float32.
"""

from __future__ import annotations

from typing import Any, Final

import tvm
import tvm_ffi
from tvm import tirx

from tapml_targets.codegen.expression import call_name

_NARROW: Final = "bfloat16"
# Every value of these is one of bfloat16.
_EXACT: Final = (_NARROW, "bool", "int8", "uint8")


def with_rounded_casts(function: Any) -> Any:
    """`function` with the rounding of each cast to bfloat16 written out: to nearest, ties to even.

    As TVM rounds where it stores: NaN stays NaN in its usual form, a quiet one.
    """
    return tvm_ffi.structural_map(function, [(tirx.Cast, _rounded), (tvm.ir.Call, _read)])


def _read(call: Any) -> Any:
    """The upper half of a float32 where bits of bfloat16 are read or made."""
    if call_name(call) != "reinterpret":
        return call
    (value,), kind = call.args, str(call.ty.dtype)
    if str(value.ty.dtype) == _NARROW:
        # What computes `value` may move here, and has not been rounded then.
        bits = _upper_half(tirx.Cast("float32", value)) >> _word(16)
        return tirx.Cast(kind, bits)
    if kind == _NARROW:
        bits = tirx.Cast("uint32", value) << _word(16)
        return tirx.Cast(_NARROW, tirx.reinterpret("float32", bits))
    return call


def _rounded(cast: Any) -> Any:
    kind = str(cast.value.ty.dtype)
    if str(cast.ty.dtype) != _NARROW or kind in _EXACT:
        return cast
    single = cast.value if kind == "float32" else tirx.Cast("float32", cast.value)
    return tirx.Cast(_NARROW, tirx.reinterpret("float32", _upper_half(single)))


def _upper_half(single: Any) -> Any:
    """The bits of a float32, rounded to those of the upper half."""
    bits = tirx.reinterpret("uint32", single)
    odd = (bits >> _word(16)) & _word(1)
    return (bits + (odd + _word(0x7FFF))) & _word(0xFFFF0000)


def _word(value: int) -> Any:
    return tirx.IntImm("uint32", value)
