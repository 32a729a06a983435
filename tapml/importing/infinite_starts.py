"""Reductions to the largest or the smallest value begin at an infinity.

TVM begins them, and pads the images of a max-pool, with the lowest finite number, so that the
largest of a row of minus infinities would be that number, and its place -1.
"""

from __future__ import annotations

from typing import Any, Final

import tvm_ffi
from tvm import tirx
from tvm.s_tir.stmt import SBlock

from tapml_targets.codegen.reducers import first_place, first_value

_POOL: Final = "max_pool"


def begin_at_infinity(module: Any) -> Any:
    """A module of unfused PrimFuncs whose extremes begin at an infinity."""
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            # A pool has such numbers around its images, too.
            is_pool = variable.name_hint.startswith(_POOL)
            rule = (tirx.FloatImm, _infinite) if is_pool else (SBlock, _begun)
            changed = tvm_ffi.structural_map(function, [rule])
            if not changed.same_as(function):
                module.update_func(variable, changed)
    return module


def _begun(block: Any) -> Any:
    first = block.init
    stores = list(first.seq) if isinstance(first, tirx.SeqStmt) else [first]
    *places, value = stores
    if len(places) > 1 or not all(isinstance(each, tirx.BufferStore) for each in stores):
        return block
    infinite = _infinite(value.value)
    if infinite.same_as(value.value):
        return block
    begun = [_storing(each, first_place(str(each.value.ty.dtype))) for each in places]
    begun.append(_storing(value, infinite))
    return SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        block.body,
        tirx.SeqStmt(begun) if places else begun[0],
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )


def _storing(store: Any, value: Any) -> Any:
    return tirx.BufferStore(store.buffer, value, store.indices)


def _infinite(value: Any) -> Any:
    """The infinity in place of the largest or the lowest number of a dtype."""
    if not isinstance(value, tirx.FloatImm):
        return value
    dtype = str(value.ty.dtype)
    if not dtype.startswith(("float16", "float32", "float64", "bfloat16")):
        return value
    if value.value == tirx.min_value(dtype).value:
        return first_value(dtype, largest=True)
    if value.value == tirx.max_value(dtype).value:
        return first_value(dtype, largest=False)
    return value
