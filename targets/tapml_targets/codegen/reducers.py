"""Extremes that begin at an infinity and keep NaN, for schedules that split a reduction.

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
        for combine in (partial(_plain, largest), partial(_extreme, largest)):
            register(1, kept(combine), kept(partial(_firsts, first)))
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


def extreme(one: Any, other: Any, *, largest: bool) -> Any:
    """The larger or the smaller of two; of numbers and NaN, NaN.

    Comparisons say which is NaN on no platform that takes it that there is none: :func:`is_nan`
    becomes a question for the bits there.
    """
    found = (tirx.Max if largest else tirx.Min)(one, other)
    if not is_float(str(one.ty.dtype)):
        return found
    for each in (other, one):
        if not isinstance(each, tirx.FloatImm) or math.isnan(each.value):
            found = tirx.Select(is_nan(each), each, found)
    return found


def is_float(dtype: str) -> bool:
    """Whether a dtype has a NaN."""
    return dtype.startswith(("float", "bfloat"))


def is_nan(value: Any) -> Any:
    """Whether a floating-point number is NaN."""
    wide = str(value.ty.dtype) in {"float32", "float64"}
    return tirx.isnan(value if wide else tirx.Cast("float32", value))


def is_taken(left: Values, right: Values, *, largest: bool) -> Any:
    """Whether of two places and their values the left one is that of the extreme.

    NaN is beyond every number; of equal values the first place is taken.
    """
    (place, value), (other_place, other) = left, right
    beyond = value > other if largest else value < other
    nearer = place < other_place
    taken = tirx.Or(beyond, tirx.And(value.equal(other), nearer))
    if not is_float(str(value.ty.dtype)):
        return taken
    number = tirx.Not(is_nan(other))
    return tirx.Select(is_nan(value), tirx.Or(number, nearer), tirx.And(number, taken))


def _plain(largest: bool, left: Values, right: Values) -> Values:
    """As the largest of a softmax, whose sum keeps NaN."""
    return [(tirx.Max if largest else tirx.Min)(left[0], right[0])]


def _extreme(largest: bool, left: Values, right: Values) -> Values:
    return [extreme(left[0], right[0], largest=largest)]


def _place_of_extreme(largest: bool, left: Values, right: Values) -> Values:
    """As topi writes it for integers."""
    taken = is_taken(left, right, largest=largest)
    beyond = left[1] > right[1] if largest else left[1] < right[1]
    chosen = taken if is_float(str(left[1].ty.dtype)) else beyond
    return [tirx.Select(taken, left[0], right[0]), tirx.Select(chosen, left[1], right[1])]
