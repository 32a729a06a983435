"""Integer expressions over shape symbols, small enough to travel to a device.

An expression is an ``int``, a symbol's name (``str``) or ``(operation, operand, ...)``. Plain data
rather than classes: it is what msgpack carries and what the evaluator in TypeScript reads.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta

from tapml_targets.errors import InputError, ProtocolError

Integer: TypeAlias = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Expression: TypeAlias = Integer | str | tuple[Any, ...]

MAX_DEPTH: Final = 64
_BOUND: Final = 1 << 63

_OPERATIONS: Final[dict[str, tuple[int, Callable[..., int]]]] = {
    "add": (2, lambda a, b: a + b),
    "sub": (2, lambda a, b: a - b),
    "mul": (2, lambda a, b: a * b),
    "floordiv": (2, lambda a, b: a // b),
    "floormod": (2, lambda a, b: a % b),
    "truncdiv": (2, lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)),
    "min": (2, min),
    "max": (2, max),
    "shift_left": (2, lambda a, b: a << min(b, 63)),
    "shift_right": (2, lambda a, b: a >> b),
    "bit_and": (2, lambda a, b: a & b),
    "eq": (2, lambda a, b: int(a == b)),
    "ne": (2, lambda a, b: int(a != b)),
    "lt": (2, lambda a, b: int(a < b)),
    "le": (2, lambda a, b: int(a <= b)),
    "gt": (2, lambda a, b: int(a > b)),
    "ge": (2, lambda a, b: int(a >= b)),
    "and": (2, lambda a, b: int(bool(a) and bool(b))),
    "or": (2, lambda a, b: int(bool(a) or bool(b))),
    "not": (1, lambda a: int(not a)),
    "select": (3, lambda c, a, b: a if c else b),
    "ceil_log2": (1, lambda a: max(a - 1, 0).bit_length()),
}
OPERATIONS: Final = frozenset(_OPERATIONS)


def evaluate(expression: Expression, symbols: Mapping[str, int]) -> int:
    """The value of `expression` where `symbols` gives every symbol's value.

    Raises
    ------
    InputError
        If a symbol has no value, a division is by zero or a shift by a negative number.
    """
    if isinstance(expression, int):
        return expression
    if isinstance(expression, str):
        try:
            return symbols[expression]
        except KeyError:
            known = ", ".join(sorted(symbols)) or "none"
            raise InputError(
                f"shape symbol {expression!r} has no value here; known: {known}"
            ) from None
    operation, *operands = expression
    try:
        return _OPERATIONS[operation][1](*(evaluate(operand, symbols) for operand in operands))
    except ZeroDivisionError:
        raise InputError(f"division by zero in {render(expression)}") from None
    except ValueError:
        raise InputError(f"shift by a negative number in {render(expression)}") from None


def symbols_of(expression: Expression) -> frozenset[str]:
    """The symbols that `expression` reads."""
    if isinstance(expression, int):
        return frozenset()
    if isinstance(expression, str):
        return frozenset((expression,))
    return frozenset().union(*(symbols_of(operand) for operand in expression[1:]))


def substitute(expression: Expression, values: Mapping[str, Expression]) -> Expression:
    """`expression` with symbols replaced by what they stand for; others stay."""
    if isinstance(expression, int):
        return expression
    if isinstance(expression, str):
        return values.get(expression, expression)
    return (expression[0], *(substitute(operand, values) for operand in expression[1:]))


def product(expressions: Iterable[Expression]) -> Expression:
    """The product, folded where it is known."""
    known = 1
    unknown: list[Expression] = []
    for expression in expressions:
        if isinstance(expression, int):
            known *= expression
        else:
            unknown.append(expression)
    if known == 0:
        return 0
    result: Expression = known
    for expression in unknown:
        result = expression if result == 1 else ("mul", result, expression)
    return result


def render(expression: Expression) -> str:
    """The expression as a person reads it."""
    if not isinstance(expression, tuple):
        return str(expression)
    operation, *operands = expression
    return f"{operation}({', '.join(render(operand) for operand in operands)})"


def bind_shape(
    declared: Sequence[Expression], actual: Sequence[int], symbols: dict[str, int], what: str
) -> None:
    """Match `actual` against `declared`, adding symbols that stand alone in a dimension.

    Raises
    ------
    InputError
        If rank, an extent or an already bound symbol differs; the message names `what`.
    """
    expected = f"({', '.join(render(d) for d in declared)})"
    if len(declared) != len(actual):
        raise InputError(
            f"{what}: expected {len(declared)} dimensions {expected}, "
            f"got {len(actual)}: {tuple(actual)}"
        )
    for extent, value in zip(declared, actual, strict=True):
        if isinstance(extent, str) and extent not in symbols:
            symbols[extent] = value
            continue
        if symbols_of(extent) <= symbols.keys() and evaluate(extent, symbols) != value:
            raise InputError(f"{what}: expected shape {expected}, got {tuple(actual)}")


def from_wire(data: object, depth: int = 0) -> Expression:
    """Check plain data from outside and return it as an expression.

    Raises
    ------
    ProtocolError
        If the data is no expression, has an integer beyond 64 bits, or is nested deeper than
        ``MAX_DEPTH``.
    """
    if isinstance(data, int) and not isinstance(data, bool) and -_BOUND <= data < _BOUND:
        return data
    if isinstance(data, str):
        return data
    if isinstance(data, list | tuple) and data and depth < MAX_DEPTH:
        operation, *operands = data
        if (
            isinstance(operation, str)
            and operation in OPERATIONS
            and len(operands) == _OPERATIONS[operation][0]
        ):
            return (operation, *(from_wire(operand, depth + 1) for operand in operands))
    raise ProtocolError(f"not an expression: {reprlib.repr(data)[:80]}")
