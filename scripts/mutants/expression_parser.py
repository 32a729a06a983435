"""Reads expressions as the code generators write them, by recursive descent.

Unknown syntax raises an error, so that no rule works on misparsed text.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Final

from scripts.mutants.syntax import WIDTHS, Expression, KernelText, Statement, Variable

_TOKEN: Final = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|\#[^\n]*)
      |(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fhiuUlL]*)
      |(?P<name>[A-Za-z_]\w*)
      |(?P<sign>\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>=!&|^~?:;,.@(){}\[\]])""",
    re.VERBOSE,
)
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


class ExpressionParser(ABC):
    """The common part of the parsers of both languages.

    Parameters
    ----------
    source
        A module's text.

    Attributes
    ----------
    variables
        What is declared so far.
    at
        Number of the next token.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self.variables: dict[str, Variable] = {}
        self._tokens = _tokens(source)

    @abstractmethod
    def module(self) -> tuple[KernelText, ...]:
        """The module's kernels."""

    @abstractmethod
    def statement(self) -> Statement:
        """One statement."""

    @abstractmethod
    def literal_type(self, text: str) -> str:
        """The type of a number."""

    @abstractmethod
    def result_type(self, function: str, arguments: list[Expression]) -> str:
        """The type that a call returns."""

    def cast(self) -> Expression | None:
        """Parse a cast, if there is one here."""
        return None

    def block(self) -> tuple[Statement, ...]:
        """Statements in braces."""
        self.expect("{")
        statements = []
        while not self.accept("}"):
            statements.append(self.statement())
        return tuple(statements)

    def store_or_call(self, start: int) -> Statement:
        """A statement that is neither a declaration nor has a block."""
        target = self.expression()
        if self.accept("="):
            value = self.expression()
            return Statement("store", start, self.expect(";"), target=target, value=value)
        if target.kind != "call":
            raise self.unknown("a store or a call")
        return Statement("call", start, self.expect(";"), value=target)

    def expression(self, level: int = 0) -> Expression:
        """An expression, or an operand of a level of precedence."""
        if level == len(_PRECEDENCE):
            return self.unary()
        # The expression includes parentheses around its left side.
        start = self.current().start
        left = self.expression(level + 1)
        while self.peek() in _PRECEDENCE[level]:
            operator = self.next().text
            right = self.expression(level + 1)
            type_name = "bool" if operator in _LOGICAL else _wider(left.type, right.type)
            end = self.end
            left = Expression("binary", operator, type_name, start, end, (left, right))
        return left

    def unary(self) -> Expression:
        """An operand with the signs before it."""
        token = self.current()
        if token.text in ("-", "!", "~"):
            self.next()
            operand = self.unary()
            end = self.end
            return Expression("unary", token.text, operand.type, token.start, end, (operand,))
        return self.cast() or self._postfix()

    def _postfix(self) -> Expression:
        start = self.current().start
        expression = self.primary()
        while self.accept("["):
            subscript = self.expression()
            end = self.expect("]")
            parts = (expression, subscript)
            expression = Expression("index", "[]", expression.type, start, end, parts)
        return expression

    def primary(self) -> Expression:
        """A name, a number, a call, or a parenthesised expression."""
        token = self.next()
        if token.text == "(":
            inner = self.expression()
            self.expect(")")
            return inner
        if token.kind == "number":
            return Expression("number", token.text, self.literal_type(token.text), *_span(token))
        if token.kind != "name":
            raise self.unknown("an expression")
        if not self.accept("("):
            variable = self.variables.get(token.text)
            type_name = "int" if variable is None else variable.type
            return Expression("name", token.text, type_name, *_span(token))
        return self.call(token.start, token.text)

    def call(self, start: int, function: str) -> Expression:
        """A call whose opening parenthesis has been taken."""
        arguments = []
        while not self.accept(")"):
            arguments.append(self.expression())
            self.accept(",")
        type_name = self.result_type(function, arguments)
        return Expression("call", function, type_name, start, self.end, tuple(arguments))

    @property
    def end(self) -> int:
        """Where the token before ends."""
        return self._tokens[self.at - 1].end

    @property
    def ended(self) -> bool:
        """Whether nothing is left."""
        return self.at >= len(self._tokens)

    def split(self) -> None:
        """Take the next token, of two signs, for two tokens."""
        token = self.current()
        middle = token.start + 1
        self._tokens[self.at : self.at + 1] = [
            replace(token, text=token.text[0], end=middle),
            replace(token, text=token.text[1:], start=middle),
        ]

    def peek(self, ahead: int = 0) -> str:
        """The text of a following token; empty behind the last."""
        position = self.at + ahead
        return self._tokens[position].text if position < len(self._tokens) else ""

    def current(self) -> Token:
        """The next token."""
        if self.at >= len(self._tokens):
            raise UnknownSyntaxError("the text ends inside a kernel")
        return self._tokens[self.at]

    def next(self) -> Token:
        """Take the next token."""
        token = self.current()
        self.at += 1
        return token

    def accept(self, text: str) -> bool:
        """Take the next token if it is `text`."""
        if self.peek() != text:
            return False
        self.at += 1
        return True

    def expect(self, text: str) -> int:
        """Take the token `text`; returns where it ends."""
        if not self.accept(text):
            raise self.unknown(repr(text))
        return self.end

    def unknown(self, wanted: str) -> UnknownSyntaxError:
        """The error for unknown syntax here."""
        at = self._tokens[min(self.at, len(self._tokens) - 1)].start
        line = self.source.count("\n", 0, at) + 1
        return UnknownSyntaxError(
            f"line {line}: expected {wanted}, found {self.source[at : at + 40]!r}"
        )


def _span(token: Token) -> tuple[int, int]:
    return token.start, token.end


def _wider(first: str, second: str) -> str:
    """The type of an arithmetic result."""
    return max(first, second, key=WIDTHS.index)
