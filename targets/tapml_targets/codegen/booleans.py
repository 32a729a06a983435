"""Bitwise operators on booleans become logical ones, and ``~`` one that TVM's passes know.

Shading languages have no ``^`` of a bool, and C takes a bool for an int first. TVM's passes do not
look into its node of ``~``: a kernel then reads a tensor that nothing declares.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import tvm_ffi
from tvm import tirx

_BOOL: Final = "bool"


def _number(value: Any) -> Any:
    # TVM's processors compare booleans as if they were floats.
    return tirx.Cast("int32", value)


_LOGICAL: Final[tuple[tuple[Any, Callable[[Any, Any], Any]], ...]] = (
    (tirx.BitwiseAnd, tirx.And),
    (tirx.BitwiseOr, tirx.Or),
    (tirx.BitwiseXor, lambda a, b: tirx.NE(_number(a), _number(b))),
)


def with_logical_operators(function: Any) -> Any:
    """`function` without a bitwise operator on booleans, and without a node of ``~``."""
    changes = [(kind, _logical(made)) for kind, made in _LOGICAL]
    return tvm_ffi.structural_map(function, [*changes, (tirx.BitwiseNot, _not)])


def _logical(make: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    def change(node: Any) -> Any:
        return make(node.a, node.b) if str(node.a.ty) == _BOOL else node

    return change


def _not(node: Any) -> Any:
    kind = str(node.a.ty)
    if kind == _BOOL:
        return tirx.Not(node.a)
    all_bits = int(np.iinfo(kind).max) if kind.startswith("u") else -1
    return tirx.BitwiseXor(node.a, tirx.IntImm(kind, all_bits))
