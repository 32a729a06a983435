"""Writes expressions as text that :mod:`tapml.kernels.expression_text` reads back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from tapml.kernels.expression_text import BINARY, COMPARISONS, FUNCTIONS
from tapml_targets.errors import InputError
from tapml_targets.expression import OPERATIONS, Expression

_SIGNS: Final = {
    **dict(zip(BINARY.values(), ("+", "-", "*", "//", "%", "<<", ">>", "&"), strict=True)),
    **dict(zip(COMPARISONS.values(), ("==", "!=", "<", "<=", ">", ">="), strict=True)),
    "and": "and",
    "or": "or",
}
Renaming: TypeAlias = Callable[[str], Expression]


def write(expression: Expression) -> str:
    """The text that :func:`parse` reads back as `expression`.

    Raises
    ------
    InputError
        If an operation has no text form.
    """
    return _write(expression, outermost=True)


def _write(expression: Expression, *, outermost: bool = False) -> str:
    if isinstance(expression, int):
        return str(expression) if expression >= 0 or outermost else f"({expression})"
    if isinstance(expression, str):
        return expression
    operation, *operands = expression
    if operation not in OPERATIONS:
        raise InputError(f"the operation {str(operation)[:40]!r} has no text form")
    if operation == "floordiv" and _is_ceiling(*operands):
        above, below = operands
        return f"ceildiv({_write(above[1], outermost=True)}, {below})"
    if operation in FUNCTIONS:
        return f"{operation}({', '.join(_write(each, outermost=True) for each in operands)})"
    if operation == "select":
        condition, then, otherwise = (_write(each) for each in operands)
        text = f"{then} if {condition} else {otherwise}"
    elif operation == "not":
        text = f"not {_write(operands[0])}"
    else:
        text = f" {_SIGNS[operation]} ".join(_write(each) for each in operands)
    return text if outermost else f"({text})"


def _is_ceiling(above: Expression, below: Expression) -> bool:
    """Whether `above // below` is what ``ceildiv`` is read as."""
    return (
        isinstance(below, int)
        and isinstance(above, tuple)
        and (above[0] == "add" and above[2] == below - 1)
    )


def substitute(expression: Expression, meaning: Renaming) -> Expression:
    """`expression` with every symbol replaced by what `meaning` gives for it."""
    if isinstance(expression, int):
        return expression
    if isinstance(expression, str):
        return meaning(expression)
    operation, *operands = expression
    return (operation, *(substitute(operand, meaning) for operand in operands))
