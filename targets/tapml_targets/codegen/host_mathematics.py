"""Functions of the C library that TVM would expand for processors, or has for no halves.

TVM writes ``tanh`` as a quotient of exponentials and ``atanh`` as a difference of logarithms: near
zero nothing is left of their digits. Of halves it calls functions that no library has; they are
computed in float32.
"""

from __future__ import annotations

from typing import Any, Final

import tvm
import tvm_ffi
from tvm import tirx

from tapml_targets.codegen.booleans import is_false
from tapml_targets.codegen.expression import call_name

_EXPANDED: Final = frozenset({"tanh", "atanh"})
_OF_NO_HALVES: Final = _EXPANDED | {
    "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atan2", "erf", "log1p",
}  # fmt: skip


def call_c_library(function: Any) -> Any:
    """A PrimFunc with such calls as calls of the C library by name, which no pass expands.

    NaN is unlike all numbers in it, and like none: TVM's ``!=`` for processors is false of it.
    """

    def call(node: Any) -> Any:
        name, kind = call_name(node), str(node.ty)
        if name in _EXPANDED and kind in {"float32", "float64"}:
            return _called(name, kind, node.args)
        if name in _OF_NO_HALVES and kind == "float16":
            wide = [tirx.Cast("float32", each) for each in node.args]
            return tirx.Cast(kind, _called(name, "float32", wide))
        return node

    def unlike(node: Any) -> Any:
        return is_false(tirx.EQ(node.a, node.b)) if "float" in str(node.a.ty) else node

    return tvm_ffi.structural_map(function, [(tvm.ir.Call, call), (tirx.NE, unlike)])


def _called(name: str, kind: str, arguments: Any) -> Any:
    return tirx.call_pure_extern(kind, f"{name}f" if kind == "float32" else name, *arguments)
