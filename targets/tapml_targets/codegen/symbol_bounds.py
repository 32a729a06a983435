"""How large the integers of a launch can become, told from the shapes of its tensors.

A tensor is bound to a kernel as a whole, and no device binds more than so many bytes: with a tensor
of shape ``(n, m)`` neither ``n``, ``m`` nor ``n * m`` can be larger than what fits. That bounds
every symbol that a shape has, with nothing declared. Extents are taken to be at least 1: a tensor
without elements launches nothing that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tapml_targets.codegen.source import SEGMENT_START
from tapml_targets.dtype import dtype
from tapml_targets.expression import Expression
from tapml_targets.library import (
    Bind,
    Condition,
    Launch,
    Loop,
    OperatorProgram,
    Parameter,
    ScalarArgument,
    Statement,
)

INT32: Final = (-(1 << 31), (1 << 31) - 1)
# What no binding exceeds, whatever a device states: an index of it fits a signed 32-bit integer.
MOST_BYTES: Final = (1 << 31) - 4
_UNKNOWN: Final = (-(1 << 62), 1 << 62)
_MOST_SHIFTED: Final = 63

_TRUTHS: Final = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not"})
# These are largest and smallest where their operands are.
_MONOTONE: Final[dict[str, Callable[[int, int], int]]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "min": min,
    "max": max,
}
# So are these where the divisor is positive.
_QUOTIENTS: Final[dict[str, Callable[[int, int], int]]] = {
    "floordiv": lambda x, y: x // y,
    "truncdiv": lambda x, y: x // y if x >= 0 else -(-x // y),
}
_SHIFTS: Final[dict[str, Callable[[int, int], int]]] = {
    "shift_left": lambda x, y: x << y,
    "shift_right": lambda x, y: x >> y,
}

Range = tuple[int, int]


@dataclass(frozen=True)
class LaunchRange:
    """What the scalars and the grid of one kernel can be, over all its launches.

    `scalars` has one range per scalar argument, in order; `grid` the largest extents (x, y, z).
    """

    scalars: tuple[Range, ...]
    grid: tuple[int, int, int]


@dataclass
class SymbolBounds:
    """Ranges of expressions over the symbols of an operator's shapes.

    `products` holds the largest value of products of symbols, `known` the ranges of single ones.
    """

    products: dict[tuple[str, ...], int]
    known: dict[str, Range] = field(default_factory=dict)

    def range_of(self, expression: Expression) -> Range:
        """The smallest and the largest value; of about 62 bits where nothing is known."""
        if isinstance(expression, int):
            return expression, expression
        if isinstance(expression, str):
            return self._symbol(expression)
        operation, *operands = expression
        ranges = [self.range_of(operand) for operand in operands]
        if operation == "mul":
            return self._product(expression, ranges)
        return _limited(_combine(operation, ranges))

    def _symbol(self, symbol: str) -> Range:
        if symbol in self.known:
            return self.known[symbol]
        bounds = [most for names, most in self.products.items() if symbol in names]
        return (0, min(bounds)) if bounds else _UNKNOWN

    def _product(self, expression: Expression, ranges: Sequence[Range]) -> Range:
        lower, upper = _corners(ranges, _MONOTONE["mul"])
        coefficient, symbols, whole = _monomial(expression)
        fits = [most for names, most in self.products.items() if _contains(names, symbols)]
        bound = whole and fits and not any(symbol in self.known for symbol in symbols)
        if symbols and coefficient >= 0 and bound:
            lower, upper = max(lower, 0), min(upper, coefficient * min(fits))
        return _limited((lower, upper))


def bounds_of(parameters: Iterable[Parameter], max_binding_bytes: int) -> SymbolBounds:
    """What the shapes of `parameters` say where a binding has at most `max_binding_bytes`.

    0 bytes state no bound: :data:`MOST_BYTES` holds.
    """
    most = min(max_binding_bytes or MOST_BYTES, MOST_BYTES)
    products: dict[tuple[str, ...], int] = {}
    for parameter in parameters:
        coefficient = dtype(parameter.dtype).nbytes(1)
        symbols: list[str] = []
        for extent in parameter.shape:
            # What is no product counts as 1 here: less than it is, so the bound is not too small.
            factor, names, _ = _monomial(_at_most(extent))
            coefficient *= max(factor, 1)
            symbols += names
        if symbols:
            key = tuple(sorted(symbols))
            products[key] = min(products.get(key, most), most // coefficient)
    return SymbolBounds(products)


def launch_ranges(program: OperatorProgram, max_binding_bytes: int) -> Mapping[str, LaunchRange]:
    """What each kernel's scalars and grids can be, by kernel."""
    bounds = bounds_of(program.parameters, max_binding_bytes)
    # An integer beside the tensors is passed as 32 bits or refused by the driver. One that a shape
    # multiplies, as n in (2 * n, m), is bounded by what is bound.
    bounded = {symbol for names in bounds.products for symbol in names}
    alone = [symbol for symbol in program.symbols if symbol not in bounded]
    bounds.known.update(dict.fromkeys(alone, INT32))
    if SEGMENT_START in bounds.known:
        # A row of a tensor that lies in one buffer, with room for a segment behind it.
        bounds.known[SEGMENT_START] = (0, MOST_BYTES // 2)
    found: dict[str, LaunchRange] = {}
    _walk(program.statements, bounds, found)
    return found


def _walk(
    statements: Iterable[Statement], bounds: SymbolBounds, found: dict[str, LaunchRange]
) -> None:
    for statement in statements:
        if isinstance(statement, Bind):
            bounds.known[statement.symbol] = bounds.range_of(statement.value)
        elif isinstance(statement, Loop):
            start, extent = bounds.range_of(statement.start), bounds.range_of(statement.extent)
            bounds.known[statement.symbol] = (start[0], max(start[0], start[1] + extent[1] - 1))
            _walk(statement.body, bounds, found)
        elif isinstance(statement, Condition):
            _walk((*statement.then, *statement.otherwise), bounds, found)
        else:
            _note(statement, bounds, found)


def _note(launch: Launch, bounds: SymbolBounds, found: dict[str, LaunchRange]) -> None:
    scalars = tuple(
        bounds.range_of(argument.value)
        for argument in launch.arguments
        if isinstance(argument, ScalarArgument)
    )
    x, y, z = (max(0, bounds.range_of(extent)[1]) for extent in launch.grid)
    known = found.get(launch.kernel)
    if known is None:
        found[launch.kernel] = LaunchRange(scalars, (x, y, z))
        return
    merged = tuple(
        (min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(known.scalars, scalars, strict=True)
    )
    grid = (max(known.grid[0], x), max(known.grid[1], y), max(known.grid[2], z))
    found[launch.kernel] = LaunchRange(merged, grid)


def _at_most(extent: Expression) -> Expression:
    """Something simpler that is not larger than `extent`: n for n + 1."""
    if isinstance(extent, tuple) and extent[0] == "add":
        base, added = extent[1:]
        if isinstance(added, int) and added >= 0:
            return _at_most(base)
    return extent


def _monomial(expression: Expression) -> tuple[int, list[str], bool]:
    """Coefficient and symbols of a product, and whether that is all there is to it."""
    if isinstance(expression, int):
        return expression, [], True
    if isinstance(expression, str):
        return 1, [expression], True
    if expression[0] != "mul":
        return 1, [], False
    left, right = _monomial(expression[1]), _monomial(expression[2])
    return left[0] * right[0], [*left[1], *right[1]], left[2] and right[2]


def _contains(names: Sequence[str], wanted: Sequence[str]) -> bool:
    left = list(names)
    for symbol in wanted:
        if symbol not in left:
            return False
        left.remove(symbol)
    return True


def _corners(ranges: Sequence[Range], combine: Callable[[int, int], int]) -> Range:
    (a, b), (c, d) = ranges
    values = [combine(x, y) for x in (a, b) for y in (c, d)]
    return min(values), max(values)


def _combine(operation: str, ranges: Sequence[Range]) -> Range:
    if operation in _TRUTHS:
        return 0, 1
    if operation == "select":
        return min(ranges[1][0], ranges[2][0]), max(ranges[1][1], ranges[2][1])
    if operation == "ceil_log2":
        return 0, 63
    if operation in _MONOTONE:
        return _corners(ranges, _MONOTONE[operation])
    (a, b), (c, d) = ranges
    found = _UNKNOWN
    if operation in _QUOTIENTS and c > 0:
        found = _corners(ranges, _QUOTIENTS[operation])
    elif operation == "floormod" and c > 0:
        found = (a, b) if a >= 0 and b < c else (0, d - 1)
    elif operation in _SHIFTS and c >= 0 and d < _MOST_SHIFTED:
        found = _corners(ranges, _SHIFTS[operation])
    elif operation == "bit_and" and a >= 0 and c >= 0:
        found = 0, min(b, d)
    return found


def _limited(found: Range) -> Range:
    return max(found[0], _UNKNOWN[0]), min(found[1], _UNKNOWN[1])
