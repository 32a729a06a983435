"""Reads the OpenCL C that TVM's code generator writes, by recursive descent.

Whatever the grammar does not have is refused by name, so that no rule works on text it only
believes to understand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scripts.mutants.syntax import WIDTHS, Expression, KernelText, Space, Statement, Variable

_TOKEN: Final = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|\#[^\n]*)
      |(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fhuUlL]*)
      |(?P<name>[A-Za-z_]\w*)
      |(?P<sign>\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>=!&|^~?:;,.(){}\[\]])""",
    re.VERBOSE,
)
_SPACES: Final[dict[str, Space]] = {"__global": "global", "__local": "local"}
_QUALIFIERS: Final = frozenset({"const", "volatile", "restrict", "__global", "__local"})
# Loosest first; an operator binds everything below it.
_PRECEDENCE: Final = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"),
    ("+", "-"), ("*", "/", "%"),
)  # fmt: skip
_LOGICAL: Final = frozenset({"||", "&&", "==", "!=", "<", "<=", ">", ">="})


class UnknownSyntaxError(ValueError):
    """The text holds something this grammar does not have."""


@dataclass(frozen=True)
class Token:
    """A lexical element and where it lies."""

    kind: str
    text: str
    start: int
    end: int


def parse_module(source: str) -> tuple[KernelText, ...]:
    """The kernels defined in a module's text, prototypes left out.

    Raises
    ------
    UnknownSyntaxError
        If the text is not of the form TVM writes.
    """
    return _Parser(source).module()


def _tokens(source: str) -> list[Token]:
    found = []
    position = 0
    while position < len(source):
        match = _TOKEN.match(source, position)
        if match is None:
            raise UnknownSyntaxError(f"unknown text at {position}: {source[position:][:40]!r}")
        if match.lastgroup != "skip":
            found.append(Token(str(match.lastgroup), match.group(), position, match.end()))
        position = match.end()
    return found


class _Parser:
    """Recursive descent over one module."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._tokens = _tokens(source)
        self._at = 0
        self._variables: dict[str, Variable] = {}

    def module(self) -> tuple[KernelText, ...]:
        kernels = []
        while self._at < len(self._tokens):
            kernel = self._kernel()
            if kernel is not None:
                kernels.append(kernel)
        return tuple(kernels)

    def _kernel(self) -> KernelText | None:
        self._expect("__kernel")
        self._expect("void")
        name = self._next().text
        self._variables = {}
        self._expect("(")
        while not self._accept(")"):
            self._variable()
            self._accept(",")
        if self._accept(";"):
            return None
        body = self._block()
        return KernelText(name, self._source, body, dict(self._variables))

    def _variable(self) -> Token:
        """A parameter's or a declaration's type and name, and the extent of an array."""
        type_name, space = self._type()
        name = self._next()
        while self._accept("["):
            self._next()
            self._expect("]")
        self._variables[name.text] = Variable(type_name, space)
        return name

    def _type(self) -> tuple[str, Space]:
        space: Space = "private"
        type_name = ""
        while self._peek() in _QUALIFIERS or self._peek() in WIDTHS or self._peek() == "*":
            text = self._next().text
            space = _SPACES.get(text, space)
            if text in WIDTHS:
                type_name = text
        if not type_name:
            raise self._unknown("a type")
        return type_name, space

    def _block(self) -> tuple[Statement, ...]:
        self._expect("{")
        statements = []
        while not self._accept("}"):
            statements.append(self._statement())
        return tuple(statements)

    def _statement(self) -> Statement:
        text = self._peek()
        start = self._current().start
        if text == "if":
            return self._if(start)
        if text == "for":
            return self._for(start)
        if text in _QUALIFIERS or text in WIDTHS:
            name = self._variable().text
            value = self._expression() if self._accept("=") else None
            return Statement("declaration", start, self._expect(";"), value=value, name=name)
        target = self._expression()
        if self._accept("="):
            value = self._expression()
            return Statement("store", start, self._expect(";"), target=target, value=value)
        if target.kind != "call":
            raise self._unknown("a store or a call")
        return Statement("call", start, self._expect(";"), value=target)

    def _if(self, start: int) -> Statement:
        self._expect("if")
        self._expect("(")
        condition = self._expression()
        self._expect(")")
        body = self._block()
        otherwise = self._block() if self._accept("else") else ()
        end = self._tokens[self._at - 1].end
        return Statement("if", start, end, value=condition, body=body, otherwise=otherwise)

    def _for(self, start: int) -> Statement:
        self._expect("for")
        self._expect("(")
        name = self._variable().text
        self._expect("=")
        first = self._expression()
        self._expect(";")
        condition = self._expression()
        self._expect(";")
        self._expect("++")
        self._next()
        self._expect(")")
        body = self._block()
        end = self._tokens[self._at - 1].end
        return Statement("for", start, end, value=condition, name=name, first=first, body=body)

    def _expression(self, level: int = 0) -> Expression:
        if level == len(_PRECEDENCE):
            return self._unary()
        # Parentheses around the left side lie inside the whole.
        start = self._current().start
        left = self._expression(level + 1)
        while self._peek() in _PRECEDENCE[level]:
            operator = self._next().text
            right = self._expression(level + 1)
            type_name = "bool" if operator in _LOGICAL else _wider(left.type, right.type)
            end = self._tokens[self._at - 1].end
            left = Expression("binary", operator, type_name, start, end, (left, right))
        return left

    def _unary(self) -> Expression:
        token = self._current()
        if token.text in ("-", "!", "~"):
            self._next()
            operand = self._unary()
            end = self._tokens[self._at - 1].end
            return Expression("unary", token.text, operand.type, token.start, end, (operand,))
        if token.text == "(" and self._peek(1) in _QUALIFIERS | set(WIDTHS):
            self._next()
            type_name, _ = self._type()
            self._expect(")")
            operand = self._unary()
            end = self._tokens[self._at - 1].end
            return Expression("cast", type_name, type_name, token.start, end, (operand,))
        return self._postfix()

    def _postfix(self) -> Expression:
        start = self._current().start
        expression = self._primary()
        while self._accept("["):
            subscript = self._expression()
            end = self._expect("]")
            parts = (expression, subscript)
            expression = Expression("index", "[]", expression.type, start, end, parts)
        return expression

    def _primary(self) -> Expression:
        token = self._next()
        if token.text == "(":
            inner = self._expression()
            self._expect(")")
            return inner
        if token.kind == "number":
            return Expression("number", token.text, _literal_type(token.text), *_span(token))
        if token.kind != "name":
            raise self._unknown("an expression")
        if not self._accept("("):
            variable = self._variables.get(token.text)
            type_name = "int" if variable is None else variable.type
            return Expression("name", token.text, type_name, *_span(token))
        arguments = []
        while not self._accept(")"):
            arguments.append(self._expression())
            self._accept(",")
        end = self._tokens[self._at - 1].end
        type_name = _result_type(token.text, arguments)
        return Expression("call", token.text, type_name, token.start, end, tuple(arguments))

    def _peek(self, ahead: int = 0) -> str:
        position = self._at + ahead
        return self._tokens[position].text if position < len(self._tokens) else ""

    def _current(self) -> Token:
        if self._at >= len(self._tokens):
            raise UnknownSyntaxError("the text ends inside a kernel")
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._current()
        self._at += 1
        return token

    def _accept(self, text: str) -> bool:
        if self._peek() != text:
            return False
        self._at += 1
        return True

    def _expect(self, text: str) -> int:
        """Take the token `text`; returns where it ends."""
        if not self._accept(text):
            raise self._unknown(repr(text))
        return self._tokens[self._at - 1].end

    def _unknown(self, wanted: str) -> UnknownSyntaxError:
        at = self._tokens[min(self._at, len(self._tokens) - 1)].start
        line = self._source.count("\n", 0, at) + 1
        return UnknownSyntaxError(
            f"line {line}: expected {wanted}, found {self._source[at : at + 40]!r}"
        )


def _span(token: Token) -> tuple[int, int]:
    return token.start, token.end


def _wider(first: str, second: str) -> str:
    """The type of an arithmetic result."""
    return max(first, second, key=WIDTHS.index)


def _literal_type(text: str) -> str:
    if text.endswith(("f", "F")):
        return "float"
    if text.endswith(("h", "H")):
        return "half"
    return "double" if "." in text or "e" in text.lower() else "int"


def _result_type(function: str, arguments: Sequence[Expression]) -> str:
    """The type a call returns: the one its name says, or that of its first argument."""
    for prefix in ("convert_", "as_"):
        named = function.removeprefix(prefix).split("_")[0]
        if function.startswith(prefix) and named in WIDTHS:
            return named
    if function.startswith("get_") or not arguments:
        return "ulong" if function.startswith("get_") else "int"
    return arguments[0].type
