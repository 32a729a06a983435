"""Arithmetic of integers of 8 and 16 bits that wraps where it stands.

C computes with such integers in 32 bits. What is not stored in between keeps bits there that the
type has not: three times the int8 100 is 300, until it is stored.
"""

from __future__ import annotations

from typing import Any, Final

import tvm
import tvm_ffi
from tvm import tirx

from tapml_targets.codegen.expression import call_name

_SMALL: Final = ("int8", "uint8", "int16", "uint16")
_WIDE: Final = "int32"


def with_wrapped_integers(function: Any) -> Any:
    """`function` with sums, differences, products and left shifts of such integers cut to them."""
    kinds = [(each, _wrapped) for each in (tirx.Add, tirx.Sub, tirx.Mul, tirx.LShift)]
    return tvm_ffi.structural_map(function, [*kinds, (tvm.ir.Call, _read)])


def _read(call: Any) -> Any:
    """Bits of what C has made wider: they are read of a number of the same size alone."""
    if call_name(call) != "reinterpret":
        return call
    kind = str(call.args[0].ty.dtype)
    if kind not in _SMALL:
        return call
    return tirx.reinterpret(str(call.ty.dtype), tirx.Cast(kind, tirx.Cast(_WIDE, call.args[0])))


def _wrapped(node: Any) -> Any:
    kind = str(node.ty.dtype)
    if kind not in _SMALL:
        return node
    return tirx.Cast(kind, type(node)(tirx.Cast(_WIDE, node.a), tirx.Cast(_WIDE, node.b)))
