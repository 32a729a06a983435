"""Reads the WGSL that tapml's code generator writes, into the same tree as OpenCL C.

Hand-written WGSL kernels and the generator's helper functions are not read: no rule applies to
them. The guard of a folded grid at the beginning of every kernel belongs to its launch and is
skipped as well.
"""

from __future__ import annotations

import re
from typing import Final

from scripts.mutants.expression_parser import ExpressionParser
from scripts.mutants.syntax import Expression, KernelText, Space, Statement, Variable
from scripts.mutants.words import WGSL

# C names of WGSL types, so that rules apply to both languages.
_TYPES: Final = {"f32": "float", "f16": "half", "i32": "int", "u32": "uint", "bool": "bool"}
_BUILTINS: Final = ("blockIdx", "gridDim", "threadIdx")
_SPACES: Final[dict[str, Space]] = {
    "storage": "global", "uniform": "global", "workgroup": "local", "private": "private",
}  # fmt: skip
_INTEGER: Final = re.compile(r"\d+[iu]?\Z")


class WgslParser(ExpressionParser):
    """Recursive descent over one WGSL module."""

    def module(self) -> tuple[KernelText, ...]:
        """The module's entry points."""
        kernels = []
        while not self.ended:
            word = self.peek()
            if word == "@":
                kernel = self._declared()
                if kernel is not None:
                    kernels.append(kernel)
            elif word == "struct":
                self._struct()
            elif word == "var":
                self._module_variable()
            elif word == "fn":
                self._skip_function()
            else:
                raise self.unknown("a declaration")
        return tuple(kernels)

    def _declared(self) -> KernelText | None:
        """A binding or an entry point with attributes."""
        self._attributes()
        if self.peek() == "var":
            self._module_variable()
            return None
        self.expect("fn")
        name = self.next().text
        self.expect("(")
        while not self.accept(")"):
            self._attributes()
            builtin = self.next().text
            if builtin not in _BUILTINS:
                raise self.unknown(f"one of {', '.join(_BUILTINS)}")
            self.expect(":")
            self._type()
            for axis in "xyz":
                self.variables[f"{builtin}.{axis}"] = Variable("uint", "private")
            self.accept(",")
        body = self.block()
        return KernelText(name, self.source, body, dict(self.variables), WGSL)

    def _attributes(self) -> None:
        while self.accept("@"):
            self.next()
            if self.accept("("):
                while not self.accept(")"):
                    self.next()

    def _struct(self) -> None:
        """The scalars of a kernel, which it reads as members of one variable."""
        self.expect("struct")
        self._struct_name = self.next().text
        self._members: dict[str, str] = {}
        self.expect("{")
        while not self.accept("}"):
            member = self.next().text
            self.expect(":")
            self._members[member] = self._type()
            self.accept(",")
        self.accept(";")

    def _module_variable(self) -> None:
        self.expect("var")
        self.expect("<")
        space = _SPACES[self.next().text]
        while not self.accept(">"):
            self.next()
        name = self.next().text
        self.expect(":")
        if self.peek() == getattr(self, "_struct_name", None):
            self.next()
            for member, type_name in self._members.items():
                self.variables[f"{name}.{member}"] = Variable(type_name, "private")
        else:
            self.variables[name] = Variable(self._type(), space)
        # The bits of an infinity have a value here: they are no part of a kernel.
        while not self.accept(";"):
            self.next()

    def _skip_function(self) -> None:
        while not self.accept("{"):
            self.next()
        depth = 1
        while depth:
            depth += {"{": 1, "}": -1}.get(self.next().text, 0)

    def _type(self) -> str:
        """A scalar's type; for an array or an atomic that of its elements."""
        name = self.next().text
        if name in _TYPES:
            return _TYPES[name]
        if name not in ("array", "atomic", "vec3"):
            raise self.unknown("a type")
        self.expect("<")
        inner = self._type()
        if self.accept(","):
            self.next()
        if self.peek() == ">>":
            # Two lists end: the second half of the sign is left for the outer one.
            self.split()
        self.expect(">")
        return inner

    def statement(self) -> Statement:
        """One statement."""
        start, word = self.current().start, self.peek()
        if word == "if":
            return self._if(start)
        if word == "for":
            return self._for(start)
        if word in ("let", "var"):
            name, value = self._local()
            return Statement("declaration", start, self.expect(";"), value=value, name=name)
        return self.store_or_call(start)

    def block(self) -> tuple[Statement, ...]:
        """Statements in braces, the guard of a folded grid left out."""
        self.expect("{")
        statements = []
        while not self.accept("}"):
            if not self._guard():
                statements.append(self.statement())
        return tuple(statements)

    def _guard(self) -> bool:
        at = self.at
        if self.accept("if"):
            self.expression()
            if self.accept("{") and self.accept("return"):
                self.expect(";")
                self.expect("}")
                return True
        self.at = at
        return False

    def _local(self) -> tuple[str, Expression | None]:
        """The name and the value of a ``let`` or a ``var``."""
        self.next()
        name = self.next().text
        self.expect(":")
        self.variables[name] = Variable(self._type(), "private")
        return name, self.expression() if self.accept("=") else None

    def _if(self, start: int) -> Statement:
        self.expect("if")
        condition = self.expression()
        body = self.block()
        otherwise: tuple[Statement, ...] = ()
        if self.accept("else"):
            nested = self.peek() == "if"
            otherwise = (self._if(self.current().start),) if nested else self.block()
        return Statement("if", start, self.end, value=condition, body=body, otherwise=otherwise)

    def _for(self, start: int) -> Statement:
        self.expect("for")
        self.expect("(")
        name, first = self._local()
        self.expect(";")
        condition = self.expression()
        self.expect(";")
        self.next()
        self.expect("++")
        self.expect(")")
        body = self.block()
        return Statement("for", start, self.end, value=condition, name=name, first=first, body=body)

    def primary(self) -> Expression:
        """A name with its member, a number, a call, or a parenthesised expression."""
        token = self.current()
        if token.kind != "name":
            return super().primary()
        self.next()
        text = token.text
        if self.accept("."):
            text = f"{text}.{self.next().text}"
        elif text == "bitcast":
            self.expect("<")
            text = f"bitcast<{self.next().text}>"
            self.expect(">")
        if self.accept("("):
            return self.call(token.start, text)
        variable = self.variables.get(text)
        type_name = "int" if variable is None else variable.type
        return Expression("name", text, type_name, token.start, self.end)

    def literal_type(self, text: str) -> str:
        """The type of a number."""
        if _INTEGER.match(text):
            return "uint" if text.endswith("u") else "int"
        return "half" if text.endswith("h") else "float"

    def result_type(self, function: str, arguments: list[Expression]) -> str:
        """The type a call returns."""
        name = function.removeprefix("bitcast<").removesuffix(">")
        if name in _TYPES:
            return _TYPES[name]
        return arguments[0].type if arguments else "int"


def parse_wgsl(source: str) -> tuple[KernelText, ...]:
    """The entry points defined in a WGSL module.

    Raises
    ------
    UnknownSyntaxError
        If the text is not of the form that tapml's code generator writes.
    """
    return WgslParser(source).module()
