"""Bitwise operators on booleans become logical ones, and ``~`` one that TVM's passes know.

Shading languages have no ``^`` of a bool, and C takes a bool for an int first. TVM's passes do not
look into its node of ``~``: a kernel then reads a tensor that nothing declares. And they take
``not x < y`` for ``y <= x``, and ``x < y or y < x`` for ``x != y``, of which NaN makes others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

_BOOL: Final = "bool"
_COMPARISONS: Final = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def _number(value: Any) -> Any:
    # TVM's processors compare booleans as if they were floats.
    return tirx.Cast("int32", value)


_LOGICAL: Final[tuple[tuple[Any, Callable[[Any, Any], Any]], ...]] = (
    (tirx.BitwiseAnd, tirx.And),
    (tirx.BitwiseOr, tirx.Or),
    (tirx.BitwiseXor, lambda a, b: tirx.NE(_number(a), _number(b))),
)


def with_logical_operators(function: Any) -> Any:
    """`function` without a bitwise operator on booleans, and without a node of ``~``.

    Comparisons of floating-point numbers keep what they say of NaN when they are combined.
    """
    changes = [(kind, _logical(made)) for kind, made in _LOGICAL]
    logical = tvm_ffi.structural_map(function, [*changes, (tirx.BitwiseNot, _not)])
    found = _Unordered(logical)
    return tvm_ffi.structural_map(
        logical, [(tirx.Not, found.negated), ((tirx.And, tirx.Or), found.apart)]
    )


def is_false(value: Any) -> Any:
    """The negation of a boolean in a form that no pass of TVM looks into."""
    return tirx.EQ(_number(value), tirx.IntImm("int32", 0))


class _Unordered:
    """What compares floating-point numbers in a function, itself or by tensors it computed."""

    def __init__(self, function: Any) -> None:
        self._tensors: list[Any] = []
        tvm_ffi.structural_walk(function.body, [(tirx.BufferStore, self._store)])

    def _store(self, store: Any) -> None:
        if str(store.buffer.dtype) == _BOOL and self._among(store.value):
            self._tensors.append(store.buffer)

    def _among(self, value: Any) -> bool:
        found: list[Any] = []
        look = [(_COMPARISONS, found.append), (tvm.ir.TensorLoad, found.append)]
        tvm_ffi.structural_walk(value, look)
        return any(
            any(each.source.same_as(tensor) for tensor in self._tensors)
            if isinstance(each, tvm.ir.TensorLoad)
            else "float" in str(each.a.ty)
            for each in found
        )

    def negated(self, node: Any) -> Any:
        """Of ``not``."""
        return is_false(node.a) if self._among(node.a) else node

    def apart(self, node: Any) -> Any:
        """Of ``and`` and ``or``; those of a reducer, by which TVM knows it, read no such tensor."""
        loads = all(isinstance(each, tvm.ir.TensorLoad) for each in (node.a, node.b))
        if not (loads and self._among(node.a) and self._among(node.b)):
            return node
        return type(node)(node.a, tirx.NE(_number(node.b), tirx.IntImm("int32", 0)))


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
