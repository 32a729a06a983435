"""An integer expression of TVM means the same after its translation."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import tirx

from tapml_targets.codegen.expression import fold, translate
from tapml_targets.errors import CompileError
from tapml_targets.expression import evaluate, symbols_of

_N, _M = tirx.Var("n", "int64"), tirx.Var("m", "int64")
_ENVIRONMENT = {_N: "n", _M: "m"}


def _positive(operation: Any) -> Any:
    """The operation with a divisor that cannot be zero."""
    return lambda a, b: operation(a, tirx.max(b, tirx.IntImm("int64", 1)))


_BINARY = (
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    tirx.min,
    tirx.max,
    _positive(tirx.floordiv),
    _positive(tirx.floormod),
    _positive(tirx.truncdiv),
    _positive(tirx.truncmod),
    lambda a, b: tirx.Select(a < b, a, b + 1),
    lambda a, b: tirx.if_then_else(tirx.all(a >= b, a != 3), a, b),
    lambda a, b: tirx.Select(tirx.any(a == b, tirx.Not(a > 2)), b, a),
)
_expressions = st.recursive(
    st.sampled_from([_N, _M]) | st.integers(-9, 9).map(lambda v: tirx.IntImm("int64", v)),
    lambda inner: st.builds(
        lambda operation, a, b: operation(a, b), st.sampled_from(_BINARY), inner, inner
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(expression=_expressions, n=st.integers(-20, 20), m=st.integers(-20, 20))
def test_a_translation_has_the_value_that_tvm_computes(expression: Any, n: int, m: int) -> None:
    translated = translate(expression, _ENVIRONMENT)
    values = {_N: tirx.IntImm("int64", n), _M: tirx.IntImm("int64", m)}
    holder = tirx.PrimFunc([_N, _M], tirx.Evaluate(expression))
    known = tvm.tirx.transform.StmtSimplify()(tvm.IRModule({"main": holder.specialize(values)}))[
        "main"
    ].body.value
    assert evaluate(translated, {"n": n, "m": m}) == int(known.value)


def test_known_operands_are_folded() -> None:
    assert fold("add", 2, fold("mul", 3, 4)) == 14
    assert symbols_of(translate(_N * 2 + _M, _ENVIRONMENT)) == {"n", "m"}


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 127, 128, 129, 1 << 40, (1 << 40) + 1])
def test_the_rounded_logarithm_is_exact(n: int) -> None:
    counted = tirx.ceil(tirx.log2(tirx.Cast("float64", _N))).astype("int64")
    expected = next(bits for bits in range(64) if 1 << bits >= n)
    assert evaluate(translate(counted, _ENVIRONMENT), {"n": n}) == expected


def test_an_unknown_variable_is_named() -> None:
    with pytest.raises(CompileError, match="'other', which neither a shape nor an argument gives"):
        translate(tirx.Var("other", "int64") + 1, _ENVIRONMENT)


def test_an_operation_without_a_counterpart_is_shown() -> None:
    with pytest.raises(CompileError, match="cannot express a call of 'popcount'"):
        translate(tirx.popcount(_N), _ENVIRONMENT)
