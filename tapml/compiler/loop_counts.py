"""How many iterations one thread of a kernel makes, read from its source text, without a C parser.

Some devices end a loop after so many iterations and say nothing
(:attr:`tapml_targets.self_test.facts.SelfTest.loop_bound`), nested ones counted together. What can
be told from the text is counted: loops of the form ``for (int i = A; i < B; i += C)`` whose bounds
are numbers, or scalars that the launch passes. Others count as one iteration.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Final

_HIDDEN: Final = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|^[ \t]*\#(?:\\\n|[^\n])*", re.DOTALL | re.MULTILINE
)
_ARGUMENTS: Final = re.compile(r"(\w+)\s*(?:\[\s*\])?\s*$")
_CASTS: Final = re.compile(
    r"\(\s*(?:unsigned\s+)?(?:int|uint|long|ulong|short|size_t|unsigned)(?:\s+int)?\s*\)"
)
_SUFFIX: Final = re.compile(r"\b(\d+)(?:[uUlL]+)\b")
_START: Final = re.compile(r"(?:[\w ]+\s)?\s*(\w+)\s*=\s*(.+)$", re.DOTALL)
_STEP: Final = re.compile(r"\+\+\s*(\w+)|(\w+)\s*\+\+|(\w+)\s*\+=\s*(.+)$", re.DOTALL)
_LONGEST_TEXT: Final = 400
_DEEPEST: Final = 200
_MOST: Final = 1 << 62
_OPERATIONS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.LShift: lambda a, b: a << min(b, 62),
    ast.RShift: lambda a, b: a >> b,
}


def loop_iterations(source: str, entry: str, scalars: Mapping[int, int]) -> int:
    """The most iterations that one thread of a kernel is known to make, all loops together.

    Parameters
    ----------
    source
        OpenCL C, or what reads like it.
    entry
        The kernel.
    scalars
        Values of its arguments by position, where the launch gives them.

    Returns
    -------
    int
        0 where there is no such kernel, or no loop in it that can be counted.
    """
    plain = _HIDDEN.sub(" ", source)
    for found in re.finditer(rf"\bvoid\b[^;{{}}]*?\b{re.escape(entry)}\s*\(", plain):
        end = _closing(plain, found.end() - 1)
        body = end + 1 + len(plain[end + 1 :]) - len(plain[end + 1 :].lstrip())
        if plain[body : body + 1] != "{":
            continue
        names = [_ARGUMENTS.search(text) for text in plain[found.end() : end].split(",")]
        known = {
            name.group(1): scalars[position]
            for position, name in enumerate(names)
            if name is not None and position in scalars
        }
        return min(_Body(plain, known).statement(body, 0)[0], _MOST)
    return 0


class _Body:
    """A reader of statements: each gives its iterations and where it ends."""

    def __init__(self, text: str, known: Mapping[str, int]) -> None:
        self._text = text
        self._known = dict(known)

    def statement(self, at: int, depth: int) -> tuple[int, int]:
        at = self._skip(at)
        if depth > _DEEPEST or at >= len(self._text):
            return 0, len(self._text)
        if self._text[at] == "{":
            return self._block(at, depth)
        word = re.compile(r"\w+").match(self._text, at)
        match word and word.group():
            case "for":
                return self._for(at, depth)
            case "while" | "switch":
                return self.statement(self._past_parentheses(at), depth + 1)
            case "if":
                then, end = self.statement(self._past_parentheses(at), depth + 1)
                following = self._skip(end)
                if not re.compile(r"else\b").match(self._text, following):
                    return then, end
                otherwise, end = self.statement(following + len("else"), depth + 1)
                return max(then, otherwise), end
            case "do" | "else":
                assert word is not None  # noqa: S101 - it matched
                return self.statement(word.end(), depth + 1)
        return 0, self._end_of_simple(at)

    def _block(self, at: int, depth: int) -> tuple[int, int]:
        total, at = 0, at + 1
        while (at := self._skip(at)) < len(self._text) and self._text[at] != "}":
            count, after = self.statement(at, depth + 1)
            total, at = total + count, max(after, at + 1)
        return total, at + 1

    def _for(self, at: int, depth: int) -> tuple[int, int]:
        opening = self._text.find("(", at)
        end = _closing(self._text, opening)
        parts = self._text[opening + 1 : end].split(";")
        extent, variable, last = 1, "", 0
        if len(parts) == 3:
            extent, variable, last = self._extent(*parts)
        before = self._known.get(variable)
        if variable:
            # An inner bound that follows this variable is taken where it is largest.
            self._known[variable] = last
        inner, after = self.statement(end + 1, depth + 1)
        if before is None:
            self._known.pop(variable, None)
        else:
            self._known[variable] = before
        return extent * (1 + inner), after

    def _extent(self, start: str, condition: str, step: str) -> tuple[int, str, int]:
        """How often a loop runs, its variable, and the variable's last value."""
        begin, move = _START.match(start.strip()), _STEP.search(step.strip())
        if begin is None or move is None:
            return 1, "", 0
        variable = begin.group(1)
        test = re.compile(rf"\s*{variable}\s*(<=|<|!=)\s*(.+)$", re.DOTALL).match(condition)
        if test is None or variable not in move.groups():
            return 1, "", 0
        low, high = self._value(begin.group(2)), self._value(test.group(2))
        by: int | None = self._value(move.group(4)) if move.group(4) else 1
        if low is None or high is None or not by or by < 0:
            return 1, "", 0
        end = high + (test.group(1) == "<=")
        return max(0, -((low - end) // by)), variable, max(low, end - 1)

    def _value(self, text: str) -> int | None:
        text = _SUFFIX.sub(r"\1", _CASTS.sub("", text.strip())).replace("/", "//")
        if len(text) > _LONGEST_TEXT:
            return None
        try:
            return self._number(ast.parse(text, mode="eval").body)
        except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
            return None

    def _number(self, node: ast.expr) -> int | None:
        match node:
            case ast.Constant(value=int() as value) if not isinstance(value, bool):
                return value
            case ast.Name(id=name):
                return self._known.get(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                negative = self._number(operand)
                return None if negative is None else -negative
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
                a, b = self._number(left), self._number(right)
                if a is None or b is None or max(abs(a), abs(b)) > _MOST:
                    return None
                return _OPERATIONS[type(op)](a, b)
        return None

    def _skip(self, at: int) -> int:
        while at < len(self._text) and self._text[at] in " \t\r\n;":
            at += 1
        return at

    def _past_parentheses(self, at: int) -> int:
        return _closing(self._text, self._text.find("(", at)) + 1

    def _end_of_simple(self, at: int) -> int:
        """Behind the semicolon of a statement; braces of an initialiser are passed over."""
        depth = 0
        while at < len(self._text):
            character = self._text[at]
            if character in "({[":
                depth += 1
            elif character in ")]}":
                if depth == 0:
                    return at
                depth -= 1
            elif character == ";" and depth == 0:
                return at + 1
            at += 1
        return at


def _closing(text: str, opening: int) -> int:
    """Where the parenthesis at `opening` is closed; the text's end where it is not."""
    depth = 0
    for at in range(max(opening, 0), len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at
    return len(text)
