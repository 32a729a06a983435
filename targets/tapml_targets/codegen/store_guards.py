"""Keeps the bound of a store behind a reduction over threads.

TVM's ``LowerCrossThreadReduction`` takes the condition of the store from the conjunctions in the
block's predicate, so a predicate that is one comparison is lost: with 100 rows at 8 a thread block
the store writes 104. A conjunction with itself is kept.
"""

from __future__ import annotations

from typing import Any, Final

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.stmt import SBlockRealize

_COMPARISONS: Final = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)


def keep_store_guards(function: Any) -> Any:
    """A scheduled PrimFunc in which no reduction over threads has one comparison as its bound."""
    threads: set[Any] = set()

    def loop(statement: Any) -> None:
        if statement.kind == tirx.ForKind.THREAD_BINDING:
            threads.add(statement.loop_var)

    def realize(node: Any) -> Any:
        over = {
            variable
            for axis, value in zip(node.block.iter_vars, node.iter_values, strict=True)
            if axis.iter_type == tirx.IterVar.CommReduce
            for variable in _variables(value)
        }
        # What bounds the reduction itself is no bound of the store.
        bounds_store = isinstance(node.predicate, _COMPARISONS) and not (
            over & _variables(node.predicate)
        )
        if not (over & threads and bounds_store):
            return node
        predicate = tirx.And(node.predicate, node.predicate)
        return SBlockRealize(node.iter_values, predicate, node.block)

    tvm_ffi.structural_walk(function.body, [(tirx.For, loop)])
    return tvm_ffi.structural_map(function, [(SBlockRealize, realize)])


def _variables(expression: Any) -> set[Any]:
    found: set[Any] = set()
    tvm_ffi.structural_walk(expression, [(tvm.ir.Var, found.add)])
    return found
