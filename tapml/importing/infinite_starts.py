"""Reductions to the largest or the smallest value begin at an infinity, and all extremes keep NaN.

TVM begins them, and pads the images of a max-pool, with the lowest finite number, so that the
largest of a row of minus infinities would be that number, and its place -1. It compares with NaN as
a processor does, which drops it or not by its place in the row; PyTorch keeps it in ``amax``,
``relu`` and ``clamp``, and has its place as that of the extreme. A softmax needs it not: its sum is
NaN then.
"""

from __future__ import annotations

from typing import Any, Final

import tvm_ffi
from tvm import tirx
from tvm.s_tir.stmt import SBlock

from tapml_targets.codegen.reducers import extreme, first_place, first_value, is_float, is_taken

_POOL: Final = "max_pool"
_SOFTMAX: Final = ("softmax", "log_softmax")


def begin_at_infinity(module: Any) -> Any:
    """A module of unfused PrimFuncs whose extremes begin at an infinity and keep NaN."""
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            # A pool has such numbers around its images, too.
            is_pool = variable.name_hint.startswith(_POOL)
            rule = (tirx.FloatImm, _infinite) if is_pool else (SBlock, _begun)
            changed = tvm_ffi.structural_map(function, [rule])
            if not variable.name_hint.startswith(_SOFTMAX):
                changed = _keeping_nan(changed)
            if not changed.same_as(function):
                module.update_func(variable, changed)
    return module


def _keeping_nan(function: Any) -> Any:
    rules = [
        (tirx.Max, _of_two), (tirx.Min, _of_two), (SBlock, _with_place_of_nan),
    ]  # fmt: skip
    return tvm_ffi.structural_map(function, rules)


def _of_two(node: Any) -> Any:
    one, other = node.a, node.b
    if not is_float(str(one.ty.dtype)):
        return node
    if isinstance(one, tirx.FloatImm):
        one, other = other, one
    if isinstance(other, tirx.FloatImm) and _is_between_numbers(one):
        # The bounds of a clamp ask once.
        inner = type(node)(one.false_value, other)
        return tirx.Select(one.condition, one.true_value, inner)
    return extreme(one, other, largest=isinstance(node, tirx.Max))


def _is_between_numbers(value: Any) -> bool:
    """Whether :func:`_of_two` made it, with a constant."""
    if not isinstance(value, tirx.Select):
        return False
    inner = value.false_value
    return isinstance(inner, tirx.Max | tirx.Min) and isinstance(inner.b, tirx.FloatImm)


def _with_place_of_nan(block: Any) -> Any:
    """A search for the place of an extreme, as topi writes it, that finds NaN."""
    first = block.init
    if not isinstance(first, tirx.SeqStmt) or len(first.seq) != 2:
        return block
    searches: list[Any] = []
    tvm_ffi.structural_walk(block.body, (tirx.Select, searches.append))
    found = next((each.condition for each in searches if _is_search(each.condition)), None)
    if found is None:
        return block
    beyond, nearer = found.a, found.b.b
    largest = isinstance(beyond, tirx.GT)
    taken = is_taken((nearer.a, beyond.a), (nearer.b, beyond.b), largest=largest)

    def chosen(select: Any) -> Any:
        asked = select.condition
        if not any(tvm_ffi.structural_equal(asked, each) for each in (found, beyond)):
            return select
        return tirx.Select(taken, select.true_value, select.false_value)

    return tvm_ffi.structural_map(block, [(tirx.Select, chosen)])


def _is_search(condition: Any) -> bool:
    """Whether it says that a value is beyond another, or equal and at an earlier place."""
    if not isinstance(condition, tirx.Or) or not isinstance(condition.b, tirx.And):
        return False
    beyond, nearer = condition.a, condition.b.b
    return (
        isinstance(beyond, tirx.GT | tirx.LT)
        and isinstance(nearer, tirx.LT)
        and is_float(str(beyond.a.ty.dtype))
    )


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
