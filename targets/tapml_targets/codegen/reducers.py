"""Extremes that begin at an infinity, for schedules that split a reduction over threads.

TVM splits the reductions that it has a reducer for, of the same first value. Its own begin at the
largest or the lowest finite number.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Final

import tvm_ffi
from tvm import tirx

Values = Sequence[Any]
_FARTHEST: Final = (1 << 31) - 1


@cache
def register_infinite_extremes() -> None:
    """Make TVM's schedules know reductions that :func:`first_value` begins; once in a process."""
    register = tvm_ffi.get_global_func("s_tir.schedule.RegisterReducer")

    def kept(function: Callable[..., Any]) -> Any:
        # TVM frees its registry when the process ends, where Python can free nothing any more.
        shared = tvm_ffi.convert(function)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(shared))
        return shared

    for largest in (True, False):
        first = partial(first_value, largest=largest)
        combine = tirx.Max if largest else tirx.Min
        register(1, kept(partial(_extreme, combine)), kept(partial(_firsts, first)))
        register(2, kept(partial(_place_of_extreme, largest)), kept(partial(_first_places, first)))


def first_value(dtype: str, *, largest: bool) -> Any:
    """What the largest or the smallest of values of a dtype begins with."""
    if dtype.startswith(("float", "bfloat")):
        return tirx.FloatImm(dtype, -math.inf if largest else math.inf)
    return tirx.min_value(dtype) if largest else tirx.max_value(dtype)


def first_place(dtype: str) -> Any:
    """The place of such a value: behind all others, so that one of equal value is nearer.

    It fits 32 bits, to which platforms narrow places.
    """
    return tirx.IntImm(dtype, _FARTHEST)


def _firsts(first: Callable[[str], Any], values: Values) -> Values:
    return [first(str(values[0].ty.dtype))]


def _first_places(first: Callable[[str], Any], values: Values) -> Values:
    place, value = (str(each.ty.dtype) for each in values)
    # TVM asks of every reduction of two values, such as a mean's with its variance.
    is_place = place.startswith(("int", "uint"))
    return [first_place(place) if is_place else first(place), first(value)]


def _extreme(combine: Callable[[Any, Any], Any], left: Values, right: Values) -> Values:
    return [combine(left[0], right[0])]


def _place_of_extreme(largest: bool, left: Values, right: Values) -> Values:
    """As topi writes it: of equal values the first."""
    (place, value), (other_place, other) = left, right
    beyond = value > other if largest else value < other
    nearer = tirx.And(value.equal(other), place < other_place)
    return [
        tirx.Select(tirx.Or(beyond, nearer), place, other_place),
        tirx.Select(beyond, value, other),
    ]
