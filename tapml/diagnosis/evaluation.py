"""Evaluates steps on carved inputs, element by element, in float64 or in the steps' own dtypes.

Only the dependencies of the requested elements are computed, so that each of a hundred mistakes can
be tried on a few elements of a large tensor in milliseconds. Steps that a mistake does not affect
are read from known tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tapml.diagnosis.steps import Constant, Load, Node, Operation, Step, Steps, Variable, extent_of
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import LimitExceededError, UnsupportedOperatorError

_NARROW: Final[dict[str, Any]] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}


def rounded(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """float64 `values` rounded to `dtype`, as float64; values of other dtypes unchanged."""
    narrow = _NARROW.get(dtype)
    if narrow is None:
        return values
    with np.errstate(all="ignore"):
        result: NDArray[Any] = np.asarray(values).astype(narrow).astype(np.float64)
    return result


def raw_bits(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """`values` as the raw bits of `dtype`: bfloat16 and the float8s as unsigned integers."""
    carrier = np.dtype(lookup(dtype).numpy_name)
    narrow = _NARROW.get(dtype)
    with np.errstate(all="ignore"):
        if narrow is None:
            return np.asarray(values, dtype=carrier, order="C")
        return np.asarray(np.asarray(values).astype(narrow), order="C").view(carrier)


Array = NDArray[Any]


def _erf(values: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(values), dtype=np.float64)


def _sigmoid(values: Array) -> Array:
    # Only for a negative exponent: exp(-x) of -1000 overflows without losing digits of the result.
    small = np.exp(-np.abs(values))
    return np.asarray(np.where(values >= 0, 1.0, small) / (1.0 + small))


def _truncmod(left: Array, right: Array) -> Array:
    return np.asarray(np.fmod(left, np.where(right == 0, 1, right)))


def _floordiv(left: Array, right: Array) -> Array:
    return np.asarray(np.floor_divide(left, np.where(right == 0, 1, right)))


def _floormod(left: Array, right: Array) -> Array:
    return np.asarray(np.mod(left, np.where(right == 0, 1, right)))


def _divided(left: Array, right: Array) -> Array:
    if left.dtype.kind in "iu" and right.dtype.kind in "iu":
        return np.asarray(np.trunc(left / np.where(right == 0, 1, right)).astype(left.dtype))
    return np.asarray(np.divide(left, right))


def _rounded_half_away(values: Array) -> Array:
    return np.asarray(np.copysign(np.floor(np.abs(values) + 0.5), values))


_FUNCTIONS: Final[dict[str, Callable[..., Array]]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divided,
    "truncmod": _truncmod,
    "floordiv": _floordiv,
    "floormod": _floormod,
    "min": np.minimum,
    "max": np.maximum,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "select": np.where,
    "exp": np.exp,
    "exp2": np.exp2,
    "exp10": lambda x: np.power(10.0, x),
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "pow": np.power,
    "tanh": np.tanh,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "atan2": np.arctan2,
    "hypot": np.hypot,
    "fmod": np.fmod,
    "copysign": np.copysign,
    "ldexp": lambda x, e: np.ldexp(x, e.astype(np.int64)),
    "sigmoid": _sigmoid,
    "erf": _erf,
    "fabs": np.abs,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": _rounded_half_away,
    "nearbyint": np.rint,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "likely": lambda x: x,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "bitwise_not": np.invert,
}


Indices = NDArray[np.int64]

_CHUNK: Final = 1 << 20
MOST_POINTS: Final = 1 << 24


@dataclass
class Budget:
    """Number of elements and terms of sums that may still be computed."""

    points: int = MOST_POINTS

    def take(self, points: int) -> None:
        """Count `points`; raise LimitExceededError if too few are left."""
        self.points -= points
        if self.points < 0:
            raise LimitExceededError(
                f"following these elements back takes more than {MOST_POINTS} evaluations"
            )


class Evaluation:
    """The values of an operator's tensors, computed on demand.

    Parameters
    ----------
    steps
        The operator's steps, possibly with a mistake in them.
    known
        Known tensors by name, at least the inputs. Floating point as float64.
    symbols
        The shape symbols.
    own_precision
        Round every number to its own dtype, like a kernel without fused operations. Otherwise
        float64, in which nothing that the dtype could hold overflows.
    budget
        Shared bound on the work.
    """

    def __init__(
        self,
        steps: Steps,
        known: Mapping[str, Array],
        symbols: Mapping[str, int],
        *,
        own_precision: bool = False,
        budget: Budget | None = None,
    ) -> None:
        self.steps = steps
        self.symbols = symbols
        self._known = known
        self._narrow = own_precision
        self._budget = budget if budget is not None else Budget()

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Extents of a tensor."""
        return tuple(extent_of(n, self.symbols) for n in self.steps.tensors[tensor].shape)

    def at(self, tensor: str, flat: Indices) -> Array:
        """Elements of a tensor by flat index, same shape as `flat`.

        Raises
        ------
        LimitExceededError
            If the budget is used up.
        UnsupportedOperatorError
            If an operation cannot be evaluated here.
        """
        if tensor in self._known:
            return self._known[tensor].reshape(-1)[flat]
        step = self.steps.steps[self._position(tensor)]
        wanted, back = np.unique(flat, return_inverse=True)
        reduced = tuple(extent_of(axis.extent, self.symbols) for axis in step.reduced)
        terms = max(1, int(np.prod(reduced)))
        parts = []
        chunk = max(1, _CHUNK // terms)
        for start in range(0, wanted.size, chunk):
            part = wanted[start : start + chunk]
            self._budget.take(part.size * terms)
            with np.errstate(all="ignore"):
                parts.append(self._elements(step, self._places(step, part, reduced)))
        values = np.concatenate(parts) if parts else np.zeros(0)
        return values[back].reshape(flat.shape)

    def grid(self, step: Step, flat: Indices) -> dict[str, Array]:
        """The step's axes at some elements, which broadcast to (elements, reduced extents).

        The empty name holds an array of that shape.
        """
        reduced = tuple(extent_of(axis.extent, self.symbols) for axis in step.reduced)
        self._budget.take(flat.size * max(1, int(np.prod(reduced))))
        return self._places(step, flat, reduced)

    def places(self, step: Step, flat: int) -> dict[str, Array]:
        """The step's axes at one element."""
        return self.grid(step, np.array([flat], np.int64))

    def _position(self, tensor: str) -> int:
        position = self.steps.maker(tensor)
        if position is None:
            raise UnsupportedOperatorError(f"tensor {tensor!r} is neither given nor computed")
        return position

    def _places(self, step: Step, flat: Indices, reduced: tuple[int, ...]) -> dict[str, Array]:
        """Values of the step's axes: kept ones per element, reduced ones as a trailing grid."""
        behind = (1,) * len(reduced)
        places: dict[str, Array] = {}
        shape = self.shape(step.writes)
        indices = np.unravel_index(flat, shape) if shape else ()
        for axis, values in zip(step.kept, indices, strict=True):
            places[axis.name] = values.reshape(-1, *behind)
        for position, (axis, extent) in enumerate(zip(step.reduced, reduced, strict=True)):
            grid = [1] * (1 + len(reduced))
            grid[1 + position] = extent
            places[axis.name] = np.arange(extent, dtype=np.int64).reshape(grid)
        places[""] = np.zeros((flat.size, *reduced), np.bool_)
        return places

    def _elements(self, step: Step, places: Mapping[str, Array]) -> Array:
        grid = places[""]
        values = np.broadcast_to(self.node(step.value, places), grid.shape)
        if step.initial is None:
            return self._carried(values, step.dtype)
        first = grid[(slice(None), *(slice(0, 1),) * (grid.ndim - 1))]
        outer = {**places, "": first}
        initial = np.broadcast_to(self.node(step.initial, outer), first.shape).reshape(len(grid))
        terms = values.reshape(len(grid), -1)
        return self._carried(self._combined(step, initial, terms), step.dtype)

    def _combined(self, step: Step, initial: Array, terms: Array) -> Array:
        """`terms` reduced along their last axis, from `initial` on."""
        function: Any = _FUNCTIONS[step.combine]
        if not self._narrow or step.combine in ("max", "min"):
            return np.asarray(function(initial, function.reduce(terms, axis=1)))
        total = rounded(initial, step.dtype)
        if step.dtype in ("float32", "float16"):
            narrow = np.concatenate([total[:, None], terms], axis=1).astype(step.dtype)
            summed: Array = function.accumulate(narrow, axis=1)[:, -1].astype(np.float64)
            return summed
        for column in range(terms.shape[1]):
            total = rounded(function(total, terms[:, column]), step.dtype)
        return total

    def node(self, node: Node, places: Mapping[str, Array]) -> Array:
        """Values of an expression at `places`; they broadcast."""
        if isinstance(node, Constant):
            return np.asarray(node.value, dtype=_carrier(node.dtype))
        if isinstance(node, Variable):
            if node.name in places:
                return places[node.name]
            return np.asarray(self.symbols[node.name], dtype=np.int64)
        if isinstance(node, Load):
            return self._load(node, places)
        operands = [self.node(operand, places) for operand in node.operands]
        return self.apply(node, operands)

    def apply(self, node: Operation, operands: list[Array]) -> Array:
        """The result of an operation on known operands."""
        if node.name == "cast":
            return self._cast(operands[0], node)
        function = _FUNCTIONS.get(node.name)
        if function is None:
            raise UnsupportedOperatorError(f"operation {node.name!r} cannot be evaluated here")
        return self._carried(np.asarray(function(*operands)), node.dtype)

    def _cast(self, values: Array, node: Operation) -> Array:
        if lookup(node.dtype).is_float:
            return self._carried(values.astype(np.float64), node.dtype)
        if values.dtype.kind == "f":
            # A number that no integer holds has no defined value; use zero.
            largest = 2.0**62
            values = np.where(np.abs(values) < largest, np.trunc(values), 0.0)
        return values.astype(_carrier(node.dtype))

    def _carried(self, values: Array, dtype: str) -> Array:
        if self._narrow and lookup(dtype).is_float:
            return rounded(values, dtype)
        return values.astype(_carrier(dtype), copy=False)

    def indices(self, load: Load, places: Mapping[str, Array]) -> Indices:
        """Flat indices of a load, clamped to the tensor: branches not taken read outside."""
        shape = self.shape(load.buffer)
        flat: Array = np.zeros((), np.int64)
        for index, extent in zip(load.indices, shape, strict=True):
            values = np.clip(self.node(index, places).astype(np.int64), 0, max(0, extent - 1))
            flat = flat * extent + values
        return np.asarray(flat, dtype=np.int64)

    def _load(self, load: Load, places: Mapping[str, Array]) -> Array:
        return self.at(load.buffer, self.indices(load, places))


def _carrier(dtype: str) -> np.dtype[Any]:
    """The numpy dtype that `dtype` is computed in: float64 for any floating-point one."""
    found = lookup(dtype)
    return np.dtype(np.float64 if found.is_float else found.numpy_name)
