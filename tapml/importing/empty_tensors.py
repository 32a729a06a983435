"""Computes what has no elements, or is made of none, when a model is imported.

A tensor with an extent of 0 has one value. TVM divides by such extents when it lowers and schedules
a function, and a sum over one writes nothing. No kernel is needed for either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from tvm import relax, tirx

from tapml.importing.relax_function import (
    ENTRY,
    bindings,
    is_one_dataflow_block,
    operands,
    operation_name,
    with_bindings,
    with_main,
)
from tapml.importing.symbolic import dtype_name

# PyTorch takes the largest of nothing for `any` alone, and the smallest for `all`.
_OF_NOTHING: Final[Mapping[str, float]] = {
    "relax.sum": 0,
    "relax.prod": 1,
    "relax.mean": math.nan,
    "relax.max": 0,
    "relax.min": 1,
    "relax.matmul": 0,
}


def fold_empty_tensors(module: Any) -> Any:
    """Replace what ``main`` computes of nothing, or without elements, by constants."""
    main = module[ENTRY]
    if not is_one_dataflow_block(main):
        return module
    changed = [relax.VarBinding(each.var, _folded(each.value)) for each in bindings(main)]
    return with_main(module, with_bindings(main, changed))


def _folded(value: Any) -> Any:
    if not operation_name(value):
        return value
    nothing = _without_elements(value.ty)
    if nothing is not None:
        return nothing
    neutral = _OF_NOTHING.get(operation_name(value))
    shape = _extents(value.ty)
    if neutral is None or shape is None or not any(_is_empty(each.ty) for each in operands(value)):
        return value
    return relax.const(np.full(shape, neutral), dtype_name(value.ty.dtype))


def _without_elements(kind: Any) -> Any:
    """The constant that a tensor without elements is, or a tuple of them; None for others."""
    if isinstance(kind, relax.TupleType):
        fields = [_without_elements(each) for each in kind.fields]
        return relax.Tuple(fields) if fields and all(each is not None for each in fields) else None
    shape = _extents(kind)
    if shape is None or 0 not in shape:
        return None
    return relax.const(np.zeros(shape), dtype_name(kind.dtype))


def _is_empty(kind: Any) -> bool:
    return 0 in (_extents(kind) or ())


def _extents(kind: Any) -> tuple[int, ...] | None:
    """The shape of a tensor, if it is a shape of numbers."""
    if not isinstance(kind, relax.TensorType) or kind.shape is None:
        return None
    extents = getattr(kind.shape, "values", ())
    if not all(isinstance(each, tirx.IntImm) for each in extents):
        return None
    return tuple(int(each) for each in extents)
