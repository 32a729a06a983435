"""TVM's integer expressions become :mod:`tapml_targets.expression`, kept symbolic until launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from tvm import tirx

from tapml_targets.errors import CompileError
from tapml_targets.expression import Expression, evaluate

_BINARY: Final[dict[str, str]] = {
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "FloorDiv": "floordiv",
    "FloorMod": "floormod",
    "Div": "truncdiv",
    "Min": "min",
    "Max": "max",
    "LShift": "shift_left",
    "RShift": "shift_right",
    "BitwiseAnd": "bit_and",
    "EQ": "eq",
    "NE": "ne",
    "LT": "lt",
    "LE": "le",
    "GT": "gt",
    "GE": "ge",
    "And": "and",
    "Or": "or",
}
_QUOTIENTS: Final = frozenset(("Add", "Sub", "Mul", "Div"))


def call_name(expression: Any) -> str:
    """Name of the operation a TVM call applies, without its namespace; empty for other nodes."""
    operation = getattr(expression, "op", None)
    return str(getattr(operation, "name", "")).rsplit(".", 1)[-1]


def translate(expression: Any, environment: Mapping[Any, Any]) -> Expression:
    """Turn a TVM integer or boolean expression into an :data:`Expression`.

    Parameters
    ----------
    expression
        A TVM expression of integers.
    environment
        The value of each variable: an :data:`Expression`, or for a floating-point variable the
        TVM expression it is bound to.

    Raises
    ------
    CompileError
        If a node has no counterpart; the message shows it.
    """
    if isinstance(expression, int):
        return int(expression)
    if isinstance(expression, tirx.IntImm):
        return int(expression.value)
    if isinstance(expression, tirx.Var):
        if expression not in environment:
            raise CompileError(
                f"a launch depends on {expression.name!r}, which neither a shape nor an argument "
                "gives: add it to the operator's symbols"
            )
        bound: Expression = environment[expression]
        return bound
    return _translate_node(expression, environment)


def _translate_node(expression: Any, environment: Mapping[Any, Any]) -> Expression:
    kind = type(expression).__name__

    def operand(node: Any) -> Expression:
        return translate(node, environment)

    if kind == "Cast":
        rounded = _ceil_log2(expression.value, environment)
        return operand(expression.value) if rounded is None else rounded
    if kind in _BINARY:
        return fold(_BINARY[kind], operand(expression.a), operand(expression.b))
    if kind == "Mod":
        dividend, divisor = operand(expression.a), operand(expression.b)
        return fold("sub", dividend, fold("mul", divisor, fold("truncdiv", dividend, divisor)))
    if kind == "Not":
        return fold("not", operand(expression.a))
    if kind == "Select":
        return fold(
            "select",
            operand(expression.condition),
            operand(expression.true_value),
            operand(expression.false_value),
        )
    if kind == "Let":
        inner = {**environment, expression.var: operand(expression.value)}
        return translate(expression.body, inner)
    if kind == "Call":
        return _translate_call(expression, operand)
    raise CompileError(f"the launch plan cannot express {kind}: {expression}")


def _translate_call(expression: Any, operand: Callable[[Any], Expression]) -> Expression:
    name = call_name(expression)
    arguments = list(expression.args)
    if name == "if_then_else":
        return fold("select", *(operand(argument) for argument in arguments))
    if name == "likely":
        return operand(arguments[0])
    if name in {"shift_left", "shift_right"}:
        return fold(name, operand(arguments[0]), operand(arguments[1]))
    if name == "bitwise_and":
        return fold("bit_and", operand(arguments[0]), operand(arguments[1]))
    raise CompileError(f"the launch plan cannot express a call of {name!r}: {expression}")


def quotient(
    expression: Any, environment: Mapping[Any, Any], kind: str
) -> tuple[Expression, str, Expression]:
    """A TVM number of floats as the fields of a ScalarArgument: two integers and the dtype.

    It is exact until it is rounded once, where TVM's own host code rounds after each operation.

    Raises
    ------
    CompileError
        If it is no sum, difference, product or quotient of constants and integers.
    """

    def parts(node: Any) -> tuple[Expression, Expression]:
        name = type(node).__name__
        if isinstance(node, tirx.Var):
            return parts(environment[node])
        if name == "FloatImm":
            # The constant as its own dtype has it.
            return float(np.dtype(str(node.ty)).type(node.value)).as_integer_ratio()
        if name == "Cast":
            inner = node.value
            return parts(inner) if _is_float(inner) else (translate(inner, environment), 1)
        if name in _QUOTIENTS:
            (a, b), (c, d) = parts(node.a), parts(node.b)
            if name == "Mul":
                return fold("mul", a, c), fold("mul", b, d)
            if name == "Div":
                return fold("mul", a, d), fold("mul", b, c)
            sides = fold("mul", a, d), fold("mul", c, b)
            return fold(_BINARY[name], *sides), fold("mul", b, d)
        raise CompileError(f"a kernel takes {expression}, which the launch plan cannot express")

    above, below = parts(expression)
    return _written(above), kind, _written(below)


def _is_float(node: Any) -> bool:
    return str(node.ty).startswith("float")


def _written(expression: Expression) -> Expression:
    """The expression with literals of 64 bits."""
    if isinstance(expression, tuple):
        operation, *operands = expression
        return (operation, *map(_written, operands))
    if isinstance(expression, str) or -(1 << 63) <= expression < 1 << 63:
        return expression
    upper: Expression = ("shift_left", _written(expression >> 62), 62)
    rest = expression & ((1 << 62) - 1)
    return ("add", upper, rest) if rest else upper


def _ceil_log2(expression: Any, environment: Mapping[Any, Any]) -> Expression | None:
    """``ceil(log2(float(n)))``, which TVM's merge sort counts its passes with, is an integer."""
    if call_name(expression) != "ceil" or call_name(expression.args[0]) != "log2":
        return None
    argument = expression.args[0].args[0]
    while isinstance(argument, tirx.Var) and not isinstance(
        environment.get(argument), int | str | tuple
    ):
        argument = environment[argument]
    if type(argument).__name__ != "Cast":
        return None
    return fold("ceil_log2", translate(argument.value, environment))


def fold(operation: str, *operands: Expression) -> Expression:
    """`operation` over `operands`, computed if all of them are known."""
    node = (operation, *operands)
    if all(isinstance(operand, int) for operand in operands):
        return evaluate(node, {})
    return node
