"""Sorts that the reference calls in place of TVM's, which compare with NaN as a processor does.

No order holds then, and a row with one NaN comes out in disorder. Here NaN is larger than any
number, and equal elements keep their order, as in PyTorch.
"""

from __future__ import annotations

import ctypes
from functools import cache
from math import prod
from typing import Any, Final

import numpy as np

_TVM: Final = "tvm.contrib.sort."
_OURS: Final = "tapml.sort."


def call_own_sorts(function: Any) -> Any:
    """A PrimFunc that calls these where it calls TVM's."""
    import tvm
    import tvm_ffi

    def renamed(node: Any) -> Any:
        name = str(node.value)
        if name not in {_TVM + each for each in _SORTS}:
            return node
        return tvm.ir.StringImm(_OURS + name.removeprefix(_TVM))

    return tvm_ffi.structural_map(function, [(tvm.ir.StringImm, renamed)])


@cache
def register_sorts() -> None:
    """Make them known by name to compiled code."""
    import tvm_ffi

    for name, sort in _SORTS.items():
        tvm_ffi.register_global_func(_OURS + name, sort, override=True)


def _sort(given: Any, values: Any, axis: int, ascending: int) -> None:
    rows = _array(given)
    _array(values)[...] = np.take_along_axis(rows, _order(rows, axis, ascending), axis)


def _argsort(given: Any, places: Any, axis: int, ascending: int) -> None:
    _array(places)[...] = _order(_array(given), axis, ascending)


def _topk(given: Any, *rest: Any) -> None:
    """The arguments are one or two results, how many, the axis, which results, the direction."""
    *results, count, axis, which, ascending = rest
    rows = _array(given)
    order = _order(rows, axis, ascending)
    if count > 0:
        order = np.take(order, range(min(count, order.shape[axis])), axis)
    found = {"values": np.take_along_axis(rows, order, axis), "indices": order}
    wanted = ("values", "indices") if which == "both" else (which,)
    for result, each in zip(results, wanted, strict=True):
        _array(result)[...] = found[each]


_SORTS: Final = {"sort": _sort, "argsort": _argsort, "topk": _topk}


def _order(rows: Any, axis: int, ascending: int) -> Any:
    """Places of the elements in order; numpy puts NaN last."""
    if ascending:
        return np.argsort(rows, axis, kind="stable")
    backwards = np.flip(rows, axis)
    order = np.flip(np.argsort(backwards, axis, kind="stable"), axis)
    return rows.shape[axis] - 1 - order


def _array(tensor: Any) -> Any:
    """The memory of a tensor that lives as long as the call."""
    kind = np.dtype(str(tensor.dtype))
    shape = tuple(map(int, tensor.shape))
    memory = (ctypes.c_char * (prod(shape) * kind.itemsize)).from_address(tensor.data_ptr())
    return np.ndarray(shape, kind, memoryview(memory))
