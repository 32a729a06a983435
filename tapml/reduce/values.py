"""Simplifies the values of inputs: delta debugging, one level of simplicity after another.

Zeller and Hildebrandt's ddmin over elements: a complete tensor first, then halves, quarters and so
on down to single elements, each simplified if the failure is preserved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tapml.reduce.search import Search
from tapml_targets.dtype import dtype as lookup
from tapml_targets.float_formats import Float64s, as_float64

Array = NDArray[Any]
_Level = tuple[str, Callable[[Float64s], Float64s]]

_DIGITS: Final = (1, 2, 3)


def shortened(values: Float64s, digits: int) -> Float64s:
    """`values` rounded to decimal digits; unchanged if float64 cannot represent the result."""
    with np.errstate(all="ignore"):
        exponent = np.floor(np.log10(np.abs(values))) - (digits - 1)
        scale = np.power(10.0, np.where(np.isfinite(exponent), exponent, 0.0))
        rounded: Float64s = np.round(values / scale) * scale
    # The scale may be zero for subnormal numbers, and the result Inf near the largest number.
    return np.where(np.isfinite(rounded), rounded, values)


def _nearest_integer(values: Float64s) -> Float64s:
    """The nearest nonzero integer."""
    with np.errstate(all="ignore"):
        rounded: Float64s = np.copysign(np.maximum(np.round(np.abs(values)), 1.0), values)
    return np.where(np.isfinite(values), rounded, values)


_FLOAT_LEVELS: Final[tuple[_Level, ...]] = (
    ("zero", np.zeros_like),
    ("one", np.ones_like),
    ("an integer", _nearest_integer),
    *((f"{n} digits", lambda values, n=n: shortened(values, n)) for n in _DIGITS),
)
_INTEGER_LEVELS: Final[tuple[_Level, ...]] = (("zero", np.zeros_like),)


def simplify_values(search: Search) -> None:
    """Simplify as many elements of the inputs as the failure allows."""
    names = [parameter.name for parameter in search.trials.operator.read]
    # The largest first, because it has most of the elements.
    order = sorted(range(len(names)), key=lambda i: -search.best.inputs[i].size)
    for level in range(len(_FLOAT_LEVELS)):
        for position in order:
            dtype = search.trials.operator.read[position].dtype
            levels = _FLOAT_LEVELS if lookup(dtype).is_float else _INTEGER_LEVELS
            if level < len(levels) and lookup(dtype).packing == 1:
                word, simplify = levels[level]
                _descend(search, position, dtype, f"{names[position]} to {word}", simplify)


def _descend(
    search: Search,
    position: int,
    dtype: str,
    doing: str,
    simplify: Callable[[Float64s], Float64s],
) -> None:
    """Halve the set of elements to simplify until each is simple or needed unchanged."""
    raw = search.best.inputs[position]
    values = as_number(raw, dtype)
    wanted = encode(simplify(values), dtype).reshape(raw.shape)
    rank = _rank(values)
    differs = (raw != wanted) & (rank > _rank(as_number(wanted, dtype)))
    pending = deque([np.flatnonzero(differs)])
    while pending:
        chosen = pending.popleft()
        if not chosen.size:
            continue
        inputs = list(search.best.inputs)
        changed = inputs[position].copy()
        changed.reshape(-1)[chosen] = wanted.reshape(-1)[chosen]
        inputs[position] = changed
        candidate = replace(search.best, inputs=tuple(inputs))
        if not search.attempt(candidate, f"{doing}, {chosen.size} elements") and chosen.size > 1:
            pending.extend(np.array_split(chosen, 2))


def _rank(values: Float64s) -> NDArray[np.int8]:
    """Complexity of a value: 0 for zero, 1 for one, then integers and short decimals."""
    rank = np.full(values.shape, 3 + len(_DIGITS), np.int8)
    for digits in reversed(_DIGITS):
        near = np.isclose(values, shortened(values, digits), rtol=1e-3 * 10.0**-digits, atol=0.0)
        rank[near] = 2 + digits
    with np.errstate(all="ignore"):
        rank[(values == np.round(values)) & (np.abs(values) < 100)] = 2
    rank[values == 1] = 1
    rank[values == 0] = 0
    return rank


def as_number(raw: Array, dtype: str) -> Float64s:
    """Raw elements of any dtype as float64."""
    return as_float64(raw, dtype) if lookup(dtype).is_float else raw.astype(np.float64)


def encode(values: Float64s, dtype: str) -> Array:
    """float64 values as raw elements, rounded to the dtype."""
    raw = np.dtype(lookup(dtype).numpy_name)
    with np.errstate(all="ignore"):
        if not lookup(dtype).is_float or raw.kind == "f":
            return values.astype(raw)
        return values.astype(getattr(ml_dtypes, dtype)).view(raw)


def count_nonzero(inputs: tuple[Array, ...]) -> int:
    """Number of elements whose bits are not zero, over all inputs."""
    return sum(int(np.count_nonzero(array)) for array in inputs)


def count_long(inputs: tuple[Array, ...], dtypes: tuple[str, ...]) -> int:
    """Number of elements that are neither integers below 100 nor decimals of up to three digits."""
    return sum(
        int((_rank(as_number(array, dtype)) > 2 + len(_DIGITS)).sum())
        for array, dtype in zip(inputs, dtypes, strict=True)
        if lookup(dtype).is_float
    )
