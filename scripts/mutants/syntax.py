"""Syntax tree, with source positions, of the kernels that TVM's code generators write.

The text is regular: declarations, stores, ``if``, ``for``, calls. :mod:`scripts.mutants.parser`
reads OpenCL C, :mod:`scripts.mutants.wgsl_parser` WGSL, whose types go by their names in C here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from scripts.mutants.words import OPENCL, Words

Space = Literal["global", "local", "private"]

WIDTHS: Final = (
    "bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half", "float",
    "double",
)  # fmt: skip
FLOATS: Final = frozenset(WIDTHS[9:])


@dataclass(frozen=True)
class Expression:
    """Part of an expression.

    Attributes
    ----------
    kind
        ``name``, ``number``, ``call``, ``index``, ``binary``, ``unary`` or ``cast``.
    text
        The name, the digits, the callee, the operator or the type.
    type
        Scalar C type of the value; of a pointer, that of what it points to.
    start, end
        Where it lies in the source, enclosing parentheses left out.
    children
        Operands or arguments; of an index the array and the subscript.
    """

    kind: Literal["name", "number", "call", "index", "binary", "unary", "cast"]
    text: str
    type: str
    start: int
    end: int
    children: tuple[Expression, ...] = ()

    def walk(self) -> Iterator[Expression]:
        """Itself and everything below it, outermost first."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def is_float(self) -> bool:
        """Whether the value is floating point."""
        return self.type in FLOATS

    @property
    def is_literal(self) -> bool:
        """Whether it is a number, cast or negated at most."""
        if self.kind in ("cast", "unary") or self.text.startswith("convert_"):
            return self.children[0].is_literal
        return self.kind == "number"

    def values(self) -> Iterator[Expression]:
        """Itself and the parts of its value, without index computations."""
        yield self
        for child in () if self.kind == "index" else self.children:
            yield from child.values()

    @property
    def array(self) -> str:
        """Name of the array an index reaches into."""
        base = self.children[0]
        while base.kind == "cast":
            base = base.children[0]
        return base.text


@dataclass(frozen=True)
class Statement:
    """One statement.

    Attributes
    ----------
    kind
        ``declaration``, ``store``, ``call``, ``if`` or ``for``.
    start, end
        Where it lies, its semicolon or block included.
    target
        What a store writes; None otherwise.
    value
        What is stored, declared with or called; the condition of an ``if`` or a ``for``.
    name
        What a declaration or a ``for`` declares.
    first
        Where a ``for`` starts.
    body, otherwise
        Blocks of an ``if`` or a ``for``.
    """

    kind: Literal["declaration", "store", "call", "if", "for"]
    start: int
    end: int
    target: Expression | None = None
    value: Expression | None = None
    name: str = ""
    first: Expression | None = None
    body: tuple[Statement, ...] = ()
    otherwise: tuple[Statement, ...] = ()

    def walk(self) -> Iterator[Statement]:
        """Itself and every statement inside, in source order."""
        yield self
        for statement in (*self.body, *self.otherwise):
            yield from statement.walk()

    def expressions(self) -> Iterator[Expression]:
        """The statement's own expressions, without its blocks."""
        for expression in (self.first, self.target, self.value):
            if expression is not None:
                yield expression


@dataclass(frozen=True)
class Variable:
    """A parameter or a local variable."""

    type: str
    space: Space


@dataclass(frozen=True)
class KernelText:
    """One kernel of a module."""

    name: str
    source: str
    body: tuple[Statement, ...]
    variables: dict[str, Variable] = field(repr=False)
    words: Words = OPENCL

    def text(self, part: Expression | Statement) -> str:
        """The source of a part."""
        return self.source[part.start : part.end]

    def statements(self) -> Iterator[Statement]:
        """All statements but declarations of values that nothing reads."""
        dead = self._unread()
        for statement in self._all():
            if not (statement.kind == "declaration" and statement.name in dead):
                yield statement

    def space(self, index: Expression) -> Space:
        """Which memory an index expression reaches into."""
        return self.variables[index.array].space

    def _all(self) -> Iterator[Statement]:
        for statement in self.body:
            yield from statement.walk()

    def _unread(self) -> frozenset[str]:
        """Names that only other unread declarations use, which the generator leaves in the text."""
        dead: frozenset[str] = frozenset()
        while True:
            used = {
                part.text
                for statement in self._all()
                if not (statement.kind == "declaration" and statement.name in dead)
                for expression in statement.expressions()
                for part in expression.walk()
                if part.kind == "name"
            }
            now = frozenset(
                s.name for s in self._all() if s.kind == "declaration" and s.name not in used
            )
            if now == dead:
                return dead
            dead = now
