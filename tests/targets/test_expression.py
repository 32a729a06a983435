"""Expressions are evaluated, bound to shapes, and read from outside with suspicion."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml_targets.errors import InputError, ProtocolError
from tapml_targets.expression import (
    MAX_DEPTH,
    Expression,
    bind_shape,
    evaluate,
    from_wire,
    product,
    render,
    symbols_of,
)
from tests.targets.strategies import expressions

SMALL = st.integers(-50, 50)


@given(expressions(["n", "m"]))
def test_an_expression_survives_the_wire(expression: Expression) -> None:
    assert from_wire(msgpack.unpackb(msgpack.packb(expression))) == expression


@given(expressions(["n", "m"]), SMALL, SMALL)
def test_symbols_of_names_all_that_evaluation_reads(expression: Expression, n: int, m: int) -> None:
    read = {name: value for name, value in (("n", n), ("m", m)) if name in symbols_of(expression)}
    try:
        evaluate(expression, read)
    except InputError as error:
        assert "division by zero" in str(error) or "negative number" in str(error)


@given(SMALL, SMALL.filter(bool))
def test_division_follows_its_name(a: int, b: int) -> None:
    assert evaluate(("floordiv", a, b), {}) == a // b
    assert evaluate(("floormod", a, b), {}) == a % b
    assert evaluate(("truncdiv", a, b), {}) == int(a / b)


@given(st.lists(st.one_of(SMALL, st.sampled_from(["n", "m"])), max_size=5), SMALL, SMALL)
def test_a_product_has_the_value_of_its_factors(factors: list[Expression], n: int, m: int) -> None:
    symbols = {"n": n, "m": m}
    expected = 1
    for factor in factors:
        expected *= evaluate(factor, symbols)
    assert evaluate(product(factors), symbols) == expected


def test_a_symbol_without_a_value_is_named_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="shape symbol 'q' has no value here; known: n"):
        evaluate(("add", "q", 1), {"n": 1})


def test_division_by_zero_shows_the_expression() -> None:
    with pytest.raises(InputError, match=r"division by zero in floordiv\(1, n\)"):
        evaluate(("floordiv", 1, "n"), {"n": 0})


def test_a_shape_binds_lone_symbols_and_checks_the_others() -> None:
    symbols: dict[str, int] = {}
    bind_shape(("n", 4, ("mul", "n", 2)), (3, 4, 6), symbols, "x")
    assert symbols == {"n": 3}
    for actual in ((4, 4, 6), (3, 5, 6), (3, 4, 7), (3, 4)):
        with pytest.raises(InputError, match=r"^x: expected"):
            bind_shape(("n", 4, ("mul", "n", 2)), actual, dict(symbols), "x")


@pytest.mark.parametrize(
    "data",
    [
        None,
        True,
        1.5,
        b"n",
        [],
        ["add", 1],
        ["add", 1, 2, 3],
        ["power", 1, 2],
        [1, 2, 3],
        [["add"], 1, 2],
        [{}, 1, 2],
        {"add": 1},
        ["add", 1, None],
        ["not", True],
    ],
)
def test_invalid_expressions_are_refused(data: Any) -> None:
    with pytest.raises(ProtocolError, match="not an expression"):
        from_wire(data)


def test_nesting_is_bounded() -> None:
    deep: Any = 1
    for _ in range(MAX_DEPTH):
        deep = ["not", deep]
    assert symbols_of(from_wire(deep)) == frozenset()
    for _ in range(2000):
        deep = ["not", deep]
    with pytest.raises(ProtocolError, match="not an expression"):
        from_wire(deep)


def test_rendering_reads_as_a_call() -> None:
    assert render(("add", "n", ("mul", 2, "m"))) == "add(n, mul(2, m))"
