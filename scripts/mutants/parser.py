"""Reads the OpenCL C that TVM's code generator writes."""

from __future__ import annotations

from typing import Final

from scripts.mutants.expression_parser import ExpressionParser, Token
from scripts.mutants.syntax import WIDTHS, Expression, KernelText, Space, Statement, Variable

_SPACES: Final[dict[str, Space]] = {"__global": "global", "__local": "local"}
_QUALIFIERS: Final = frozenset({"const", "volatile", "restrict", "__global", "__local"})


def parse_module(source: str) -> tuple[KernelText, ...]:
    """The kernels defined in a module's text, prototypes left out.

    Raises
    ------
    UnknownSyntaxError
        If the text is not of the form TVM writes.
    """
    return OpenClParser(source).module()


class OpenClParser(ExpressionParser):
    """Recursive descent over one module."""

    def module(self) -> tuple[KernelText, ...]:
        """The module's kernels, prototypes left out."""
        kernels = []
        while not self.ended:
            kernel = self._kernel()
            if kernel is not None:
                kernels.append(kernel)
        return tuple(kernels)

    def _kernel(self) -> KernelText | None:
        self.expect("__kernel")
        self.expect("void")
        name = self.next().text
        self.variables = {}
        self.expect("(")
        while not self.accept(")"):
            self._variable()
            self.accept(",")
        if self.accept(";"):
            return None
        body = self.block()
        return KernelText(name, self.source, body, dict(self.variables))

    def _variable(self) -> Token:
        """A parameter's or a declaration's type and name, and the extent of an array."""
        type_name, space = self._type()
        name = self.next()
        while self.accept("["):
            self.next()
            self.expect("]")
        self.variables[name.text] = Variable(type_name, space)
        return name

    def _type(self) -> tuple[str, Space]:
        space: Space = "private"
        type_name = ""
        while self.peek() in _QUALIFIERS or self.peek() in WIDTHS or self.peek() == "*":
            text = self.next().text
            space = _SPACES.get(text, space)
            if text in WIDTHS:
                type_name = text
        if not type_name:
            raise self.unknown("a type")
        return type_name, space

    def statement(self) -> Statement:
        """One statement."""
        text = self.peek()
        start = self.current().start
        if text == "if":
            return self._if(start)
        if text == "for":
            return self._for(start)
        if text in _QUALIFIERS or text in WIDTHS:
            name = self._variable().text
            value = self.expression() if self.accept("=") else None
            return Statement("declaration", start, self.expect(";"), value=value, name=name)
        return self.store_or_call(start)

    def _if(self, start: int) -> Statement:
        self.expect("if")
        self.expect("(")
        condition = self.expression()
        self.expect(")")
        body = self.block()
        otherwise = self.block() if self.accept("else") else ()
        end = self.end
        return Statement("if", start, end, value=condition, body=body, otherwise=otherwise)

    def _for(self, start: int) -> Statement:
        self.expect("for")
        self.expect("(")
        name = self._variable().text
        self.expect("=")
        first = self.expression()
        self.expect(";")
        condition = self.expression()
        self.expect(";")
        self.expect("++")
        self.next()
        self.expect(")")
        body = self.block()
        end = self.end
        return Statement("for", start, end, value=condition, name=name, first=first, body=body)

    def cast(self) -> Expression | None:
        """Parse a cast, if there is one here."""
        start = self.current().start
        if self.peek() != "(" or self.peek(1) not in _QUALIFIERS | set(WIDTHS):
            return None
        self.next()
        type_name, _ = self._type()
        self.expect(")")
        operand = self.unary()
        return Expression("cast", type_name, type_name, start, self.end, (operand,))

    def literal_type(self, text: str) -> str:
        """The type of a number."""
        if text.endswith(("f", "F")):
            return "float"
        if text.endswith(("h", "H")):
            return "half"
        return "double" if "." in text or "e" in text.lower() else "int"

    def result_type(self, function: str, arguments: list[Expression]) -> str:
        """The type a call returns: the one in its name, or that of its first argument."""
        for prefix in ("convert_", "as_"):
            named = function.removeprefix(prefix).split("_")[0]
            if function.startswith(prefix) and named in WIDTHS:
                return named
        if function.startswith("get_") or not arguments:
            return "ulong" if function.startswith("get_") else "int"
        return arguments[0].type
