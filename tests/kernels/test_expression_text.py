"""Expressions are read as Python reads them, written back, and refused with their column."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml.kernels.expression_text import ExpressionError, Scope, parse, write
from tapml_targets.expression import Expression, evaluate
from tapml_targets.library import Parameter

VALUES = {"S": 13, "n": 4}
SCOPE = Scope(
    {"S": "S", "n": "n"},
    {
        "input_0": Parameter("input_0", (1, "S", 128), "float32", "input"),
        "packed": Parameter("packed", ("n", 3), "int4", "input"),
    },
)
ARITHMETIC = ("add", "sub", "mul", "floordiv", "floormod", "truncdiv", "min", "max")
LOGIC = ("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "bit_and", "shift_left", "shift_right")

leaves = st.one_of(st.integers(-9, 1000), st.sampled_from(["S", "n"]))


def _operations(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    return st.one_of(
        st.tuples(st.sampled_from((*ARITHMETIC, *LOGIC)), inner, inner),
        st.tuples(st.sampled_from(("not", "ceil_log2")), inner),
        st.tuples(st.just("select"), inner, inner, inner),
    )


@given(st.recursive(leaves, _operations, max_leaves=12))
def test_what_is_written_is_read_back(expression: Expression) -> None:
    assert parse(write(expression), SCOPE) == expression


SIGNS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "&": operator.and_,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


LEAVES = [("S", 13), ("n", 4), ("7", 7), ("-2", -2), ("0", 0)]


@st.composite
def spoken(draw: Any, depth: int = 3) -> tuple[str, int]:
    """A text and what Python makes of it, built side by side."""
    if depth == 0 or draw(st.booleans()):
        leaf: tuple[str, int] = draw(st.sampled_from(LEAVES))
        return leaf
    left, a = draw(spoken(depth - 1))
    right, b = draw(spoken(depth - 1))
    kind = draw(st.sampled_from([*SIGNS, "and", "or", "if", "min", "max", "ceildiv", "-x"]))
    below = b if b else 3
    below_text = right if b else "3"
    if kind in ("//", "%"):
        return f"({left}) {kind} ({below_text})", SIGNS[kind](a, below)
    if kind in SIGNS:
        return f"({left}) {kind} ({right})", int(SIGNS[kind](a, b))
    divisor = abs(below)
    others = {
        "and": (f"({left}) and ({right})", int(bool(a) and bool(b))),
        "or": (f"({left}) or ({right})", int(bool(a) or bool(b))),
        "if": (f"({left}) if ({right}) else ({left}) + 1", a if b else a + 1),
        "min": (f"min({left}, {right}, 5)", min(a, b, 5)),
        "max": (f"max({left}, {right}, 5)", max(a, b, 5)),
        "ceildiv": (f"ceildiv({left}, {divisor})", -(-a // divisor)),
        "-x": (f"-({left})", -a),
    }
    return others[kind]


@given(spoken())
def test_values_are_those_of_python(pair: tuple[str, int]) -> None:
    text, value = pair
    assert evaluate(parse(text, SCOPE), VALUES) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("S * 64 + 1 // 2", 832),
        ("2 - 3 - 4", -5),
        ("1 < n < 5", 1),
        ("not S", 0),
        ("ceildiv(S * 64, 256)", 4),
        ("input_0.shape[1]", 13),
        ("input_0.shape[-1]", 128),
        ("input_0.size", 1664),
        ("input_0.nbytes", 6656),
        ("packed.nbytes", 6),
        ("1 << n", 16),
        ("truncdiv(-7, 2)", -3),
    ],
)
def test_precedence_functions_and_extents(text: str, value: int) -> None:
    assert evaluate(parse(text, SCOPE), VALUES) == value


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("4 * T", 5, "'T' is not a symbol"),
        ("  4 * T", 7, "symbols here are S, n"),
        ("S / 2", 5, "'/' does not give an integer"),
        ("S ** 2", 6, "this operator is not known"),
        ("min(S)", 1, "two or more operands"),
        ("ceildif(S, 2)", 1, "did you mean 'ceildiv'?"),
        ("S.real", 1, "no tensor 'S'"),
        ("2 + input_0", 5, "is a tensor"),
        ("input_0.shape[3]", 15, "has 3 dimensions"),
        ("input_1.shape[0]", 1, "did you mean 'input_0'?"),
        ("input_0.strides[0]", 1, "expected input_0.shape[i]"),
        ("S +", 4, "expected an expression"),
        ("", 1, "got nothing"),
        ("1.5", 1, "expected an integer"),
        ("True", 1, "expected an integer"),
        ("'S'", 1, "expected an integer"),
        ("[S for S in n]", 1, "not an integer expression"),
        ("lambda: 1", 1, "not an integer expression"),
        ("__import__('os')", 1, "there is no function '__import__'"),
        ("S.__class__", 1, "no tensor"),
        ("99999999999999999999", 1, "64 bits"),
        ("ä + S", 1, "'ä' is not a symbol"),
        ("S + ä", 5, "'ä' is not a symbol"),
        ("1\n+ S", 1, "one line"),
    ],
)
def test_a_mistake_is_named_with_its_column(text: str, column: int, words: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text, SCOPE)
    assert caught.value.column == column
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text", ["-" * 900 + "S", "(" * 400 + "S" + ")" * 400, "+".join("S" * 400), "1" * 1001]
)
def test_an_expression_without_bounds_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse(text, SCOPE)
