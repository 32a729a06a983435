"""Says in a kernel what its axes are, for a target whose integers have 32 bits.

A thread's place f among (6, n, 12) elements has the row ``f // (n * 12)``, which is below 6. Once a
schedule has put that in the place of an axis of 6, nothing says so where n is known to a run alone.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.stmt import SBlockRealize


def with_bounded_axes(module: Any) -> Any:
    """A scheduled module in which such a row is ``min(f // (n * 12), 5)``."""

    def bounded(axis: Any, value: Any) -> Any:
        first, extent = axis.dom.min, axis.dom.extent
        if not (isinstance(extent, tirx.IntImm) and isinstance(first, tirx.IntImm)):
            return value
        if int(first.value) or not _divides_by_a_symbol(value):
            return value
        return tirx.Min(value, tirx.IntImm(str(value.ty), int(extent.value) - 1))

    def realize(node: Any) -> Any:
        pairs = zip(node.block.iter_vars, node.iter_values, strict=True)
        return SBlockRealize([bounded(*pair) for pair in pairs], node.predicate, node.block)

    functions = {
        name: tvm_ffi.structural_map(function, [(SBlockRealize, realize)])
        for name, function in module.functions.items()
    }
    return tvm.IRModule(functions)


def _divides_by_a_symbol(value: Any) -> bool:
    found: list[Any] = []

    def look(node: Any) -> None:
        if not isinstance(node.b, tirx.IntImm):
            found.append(node)

    tvm_ffi.structural_walk(value, [(tirx.FloorDiv, look)])
    return bool(found)
