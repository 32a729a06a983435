"""Reads and writes integer expressions as text: ``ceildiv(S * 64, 256)``.

Python's own parser handles syntax and precedence, and evaluates nothing. Only the nodes listed here
are allowed; others are refused with their column. Semantics are those of Python's integers; a
comparison is 1 or 0.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Final, TypeAlias

from tapml_targets.dtype import dtype
from tapml_targets.errors import InputError
from tapml_targets.expression import MAX_DEPTH, OPERATIONS, Expression, product
from tapml_targets.library import Parameter

MAX_TEXT: Final = 1000
"""Most characters of one expression."""
MAX_INTEGER: Final = (1 << 63) - 1

_SHOWN: Final = 120

BINARY: Final[dict[type[ast.operator], str]] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "floordiv",
    ast.Mod: "floormod",
    ast.LShift: "shift_left",
    ast.RShift: "shift_right",
    ast.BitAnd: "bit_and",
}
COMPARISONS: Final[dict[type[ast.cmpop], str]] = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}
# Functions by name with their number of operands; None means two or more.
FUNCTIONS: Final[dict[str, int | None]] = {
    "ceildiv": 2,
    "min": None,
    "max": None,
    "truncdiv": 2,
    "ceil_log2": 1,
}
_KNOWN: Final = (
    "known are + - * // % << >> &, comparisons, and or not, `a if c else b`, "
    f"{', '.join(FUNCTIONS)}, and .shape[i], .size and .nbytes of a tensor"
)


class ExpressionError(InputError):
    """A text that is not an expression.

    Attributes
    ----------
    problem
        What is wrong, and what was expected.
    column
        Position in the text, from 1.
    """

    def __init__(self, problem: str, text: str, column: int) -> None:
        shown = text if len(text) <= _SHOWN else ""
        super().__init__(
            f"column {column}: {problem}"
            + (f"\n  {shown}\n  {' ' * (column - 1)}^" if shown else "")
        )
        self.problem = problem
        self.column = column


@dataclass(frozen=True)
class Scope:
    """The names that an expression may use.

    Attributes
    ----------
    symbols
        Meaning of each symbol: shape symbols, and those of enclosing host loops.
    parameters
        The operator's tensors, for ``input_0.shape[1]``.
    open
        Whether any other name is a symbol that means itself.
    """

    symbols: Mapping[str, Expression] = field(default_factory=dict)
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    open: bool = False

    def with_symbol(self, symbol: str) -> Scope:
        """The scope with one more symbol."""
        return replace(self, symbols={**self.symbols, symbol: symbol})


def parse(text: str, scope: Scope) -> Expression:
    """Read an expression.

    Parameters
    ----------
    text
        For instance ``ceildiv(S * 64, 256)`` or ``input_0.shape[1]``.
    scope
        The names it may use.

    Raises
    ------
    ExpressionError
        If the text is not an expression.
    """
    if len(text) > MAX_TEXT:
        raise ExpressionError(
            f"expected at most {MAX_TEXT} characters, got {len(text)}", text, MAX_TEXT + 1
        )
    plain = text.strip()
    if "\n" in plain or "\r" in plain:
        raise ExpressionError("expected one line", text.splitlines()[0], 1)
    indent = len(text) - len(text.lstrip())
    try:
        tree = ast.parse(plain, mode="eval")
    except SyntaxError as error:
        said = "an expression, got nothing" if not plain else f"an expression ({error.msg})"
        # At the end of the text Python gives no position.
        column = indent + min(error.offset or len(plain) + 1, len(plain) + 1)
        raise ExpressionError(f"expected {said}", text, column) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"expected an expression ({error})", text, indent + 1) from None
    return _Reader(text, plain, indent, scope).read(tree.body, 0)


class _Reader:
    """Turns Python's syntax tree into an expression, node by node."""

    def __init__(self, text: str, plain: str, indent: int, scope: Scope) -> None:
        self._text = text
        self._bytes = plain.encode()
        self._indent = indent
        self._scope = scope

    def read(self, node: ast.expr, depth: int) -> Expression:
        # Some operators below stand for two nested operations.
        if depth >= MAX_DEPTH // 2:
            raise self.error(node, f"nested deeper than {MAX_DEPTH // 2} operations; split it")
        match node:
            case ast.Constant(value=value):
                return self.integer(node, value)
            case ast.Name(id=name):
                return self.symbol(node, name)
            case ast.Attribute() | ast.Subscript():
                return self.extent(node)
            case ast.Call():
                return self.call(node, depth)
        return self.operation(node, depth)

    def operation(self, node: ast.expr, depth: int) -> Expression:
        match node:
            case ast.BinOp(left, operator, right):
                return self.binary(left, operator, right, depth)
            case ast.UnaryOp(sign, operand):
                return self.unary(node, sign, operand, depth)
            case ast.BoolOp(joint, values):
                name = "and" if isinstance(joint, ast.And) else "or"
                return self.chain(node, name, [self.read(v, depth + 1) for v in values], depth)
            case ast.Compare(left, operators, others):
                return self.comparison(node, left, operators, others, depth)
            case ast.IfExp(test, body, otherwise):
                return (
                    "select",
                    *(self.read(each, depth + 1) for each in (test, body, otherwise)),
                )
        raise self.error(node, f"this is not an integer expression; {_KNOWN}")

    def integer(self, node: ast.expr, value: object) -> Expression:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(node, f"expected an integer, got {str(value)[:40]!r}")
        if value > MAX_INTEGER:
            raise self.error(node, f"expected an integer of 64 bits, got {str(value)[:40]}")
        return value

    def symbol(self, node: ast.expr, name: str) -> Expression:
        if name in self._scope.symbols:
            return self._scope.symbols[name]
        if self._scope.open:
            return name
        if name in self._scope.parameters:
            raise self.error(
                node, f"{name!r} is a tensor: expected one of its extents, {name}.shape[0]"
            )
        known = sorted(self._scope.symbols)
        there = f"symbols here are {', '.join(known)}" if known else "there are no symbols here"
        tensor = next(iter(self._scope.parameters), "")
        if tensor:
            there += f"; an extent of a tensor is {tensor}.shape[0]"
        raise self.error(node, f"{name!r} is not a symbol{_near(name, known)}; {there}")

    def binary(
        self, left: ast.expr, operator: ast.operator, right: ast.expr, depth: int
    ) -> Expression:
        operation = BINARY.get(type(operator))
        if operation is None:
            if isinstance(operator, ast.Div):
                problem = "'/' does not give an integer: expected // (rounds down) or ceildiv(a, b)"
            else:
                problem = f"this operator is not known; {_KNOWN}"
            raise self.error(right, problem)
        return (operation, self.read(left, depth + 1), self.read(right, depth + 1))

    def unary(
        self, node: ast.expr, operator: ast.unaryop, operand: ast.expr, depth: int
    ) -> Expression:
        value = self.read(operand, depth + 1)
        if isinstance(operator, ast.Not):
            return ("not", value)
        if isinstance(operator, ast.UAdd):
            return value
        if isinstance(operator, ast.USub):
            return -value if isinstance(value, int) else ("sub", 0, value)
        raise self.error(node, f"this operator is not known; {_KNOWN}")

    def chain(
        self, node: ast.expr, operation: str, values: Sequence[Expression], depth: int
    ) -> Expression:
        if depth + len(values) > MAX_DEPTH // 2:
            raise self.error(node, f"nested deeper than {MAX_DEPTH // 2} operations; split it")
        return reduce(lambda first, second: (operation, first, second), values)

    def comparison(
        self,
        node: ast.expr,
        left: ast.expr,
        operators: Sequence[ast.cmpop],
        others: Sequence[ast.expr],
        depth: int,
    ) -> Expression:
        operands = [self.read(each, depth + 1) for each in (left, *others)]
        compared: list[Expression] = []
        for operator, first, second in zip(operators, operands, operands[1:], strict=False):
            operation = COMPARISONS.get(type(operator))
            if operation is None:
                raise self.error(node, f"this comparison is not known; {_KNOWN}")
            compared.append((operation, first, second))
        return self.chain(node, "and", compared, depth)

    def call(self, node: ast.Call, depth: int) -> Expression:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in FUNCTIONS:
            shown = name or ast.unparse(node.func)[:40]
            raise self.error(
                node.func,
                f"there is no function {shown!r}{_near(shown, list(FUNCTIONS))}; "
                f"there are {', '.join(FUNCTIONS)}",
            )
        count = FUNCTIONS[name]
        given = len(node.args)
        if node.keywords or (given < 2 if count is None else given != count):
            wanted = "two or more" if count is None else str(count)
            raise self.error(node, f"{name} takes {wanted} operands in order, got {given}")
        operands = [self.read(operand, depth + 1) for operand in node.args]
        if name == "ceildiv":
            above, below = operands
            less: Expression = below - 1 if isinstance(below, int) else ("sub", below, 1)
            return ("floordiv", ("add", above, less), below)
        if count is None:
            return self.chain(node, name, operands, depth)
        return (name, *operands)

    def extent(self, node: ast.Attribute | ast.Subscript) -> Expression:
        attribute = node.value if isinstance(node, ast.Subscript) else node
        if not (isinstance(attribute, ast.Attribute) and isinstance(attribute.value, ast.Name)):
            raise self.error(node, "expected an extent of a tensor, such as input_0.shape[0]")
        name = attribute.value.id
        parameter = self._scope.parameters.get(name)
        if parameter is None:
            known = list(self._scope.parameters)
            raise self.error(
                node,
                f"there is no tensor {name!r}{_near(name, known)}; the operator has "
                f"{', '.join(known) or 'none'}",
            )
        if isinstance(node, ast.Attribute):
            if node.attr == "size":
                return product(parameter.shape)
            if node.attr == "nbytes":
                return _nbytes(parameter)
            raise self.error(node, f"expected {name}.shape[i], {name}.size or {name}.nbytes")
        if attribute.attr != "shape":
            raise self.error(
                node, f"expected {name}.shape[i], got {name}.{attribute.attr[:40]}[...]"
            )
        index = self.read(node.slice, 0)
        rank = len(parameter.shape)
        if not isinstance(index, int) or not -rank <= index < rank:
            raise self.error(
                node.slice,
                f"{name} has {rank} dimensions: expected an index from 0 to {rank - 1}"
                if rank
                else f"{name} has no dimension",
            )
        return parameter.shape[index]

    def error(self, node: ast.expr, problem: str) -> ExpressionError:
        # Python's columns count bytes of UTF-8.
        before = self._bytes[: node.col_offset].decode(errors="replace")
        return ExpressionError(problem, self._text, self._indent + len(before) + 1)


def _nbytes(parameter: Parameter) -> Expression:
    bits = dtype(parameter.dtype).bits
    elements = product(parameter.shape)
    if bits % 8:
        return ("floordiv", ("add", ("mul", elements, bits), 7), 8)
    return product((*parameter.shape, bits // 8))


def _near(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


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
        If an operation has no textual form.
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
    """Whether `above // below` is the parsed form of ``ceildiv``."""
    return (
        isinstance(below, int)
        and isinstance(above, tuple)
        and (above[0] == "add" and above[2] == below - 1)
    )


def substitute(expression: Expression, meaning: Renaming) -> Expression:
    """`expression` with every symbol replaced by its `meaning`."""
    if isinstance(expression, int):
        return expression
    if isinstance(expression, str):
        return meaning(expression)
    operation, *operands = expression
    return (operation, *(substitute(operand, meaning) for operand in operands))
