"""Classifies PrimFuncs for fusion."""

from __future__ import annotations

from typing import Any, Final

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock

from tapml.importing.reshape_groups import same_size

# TVM's operator patterns (`relay::OpPatternKind`).
INJECTIVE: Final = 2
OPAQUE: Final = 8
# A reduction, and one that elementwise consumers may be fused with.
ANCHORS: Final = frozenset({3, 4})


def pattern(function: Any) -> int:
    """TVM's pattern of a function: 0 elementwise, 1 broadcast, 2 injective, then reductions."""
    attributes = function.attrs
    return int(attributes["op_pattern"]) if "op_pattern" in attributes else OPAQUE


def is_permutation(function: Any) -> bool:
    """Whether a function returns each input element exactly once, in another order."""
    if not all(isinstance(each.ty, tirx.BufferType) for each in function.params):
        return False
    source, *others = (parameter.ty.shape for parameter in function.params)
    stores: list[Any] = []
    tvm_ffi.structural_walk(function.body, (tirx.BufferStore, stores.append))
    moves = bool(stores) and all(isinstance(each.value, tvm.ir.TensorLoad) for each in stores)
    return moves and len(others) == 1 and same_size(source, others[0])


def is_product(function: Any) -> bool:
    """Whether a function reduces products of two tensors: a matrix product, a convolution."""
    return any(
        len({read.source for read in block.reads} - {write.source for write in block.writes}) > 1
        for block in _blocks(function)
        if any(int(variable.iter_type) == tirx.IterVar.CommReduce for variable in block.iter_vars)
    )


def _blocks(function: Any) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(function.body, (SBlock, found.append))
    return found
