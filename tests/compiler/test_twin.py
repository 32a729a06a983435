"""A twin computes the same function and only rounds less."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax, te, tirx

from tapml.compiler.twin import compile_twins
from tests.compiler.operators import from_relax, matmul_transposed, operator, scale


def test_a_product_is_computed_in_double_precision() -> None:
    twins = compile_twins([matmul_transposed()])
    rng = np.random.default_rng(0)
    given, weight, result = rng.standard_normal((4, 48)), rng.standard_normal((32, 48)), None
    result = np.zeros((4, 32))
    twins["matmul"](given, weight, result)
    np.testing.assert_allclose(result, given @ weight.T, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_softmax_is_computed_in_double_precision(dtype: str) -> None:
    of = from_relax("softmax", ("n", 100), relax.op.nn.softmax, dtype=dtype)
    given, result = np.random.default_rng(0).standard_normal((3, 100)), np.zeros((3, 100))
    compile_twins([of])["softmax"](given, result)
    powers = np.exp(given)
    np.testing.assert_allclose(result, powers / powers.sum(-1, keepdims=True), rtol=1e-14)


@pytest.mark.parametrize(("name", "numpy"), [("exp", np.exp), ("tanh", np.tanh), ("erf", None)])
def test_intrinsics_are_those_of_double_precision(name: str, numpy: np.ufunc | None) -> None:
    of = from_relax(name, ("n",), getattr(relax.op, name))
    given, result = np.linspace(-2, 2, 41), np.zeros(41)
    compile_twins([of])[name](given, result)
    if numpy is None:
        from math import erf

        expected = np.array([erf(x) for x in given])
    else:
        expected = numpy(given)
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("dtype", "rounded"), [("float32", np.float32), ("float16", np.float16)])
def test_a_constant_keeps_the_value_its_own_type_gives_it(
    dtype: str, rounded: type[np.floating]
) -> None:
    result = np.zeros((1, 8))
    compile_twins([scale(factor=0.1, dtype=dtype)])["scale"](np.ones((1, 8)), result)
    np.testing.assert_array_equal(result, np.full((1, 8), float(rounded(0.1))))


def test_integers_stay_integers_in_the_twin() -> None:
    table = te.placeholder((10, 4), "float32", name="table")
    rows = te.placeholder((tirx.Var("n", "int64"),), "int32", name="rows")
    taken = te.compute((rows.shape[0], 4), lambda i, j: table[rows[i], j], "taken")
    of = operator("take", te.create_prim_func([table, rows, taken]))
    values, result = np.random.default_rng(0).standard_normal((10, 4)), np.zeros((3, 4))
    twins = compile_twins([of])
    assert [p.dtype for p in twins["take"].parameters] == ["float64", "int32", "float64"]
    twins["take"](values, np.array([7, 0, 7], np.int32), result)
    np.testing.assert_array_equal(result, values[[7, 0, 7]])


def test_a_minimum_of_its_type_stays_below_everything() -> None:
    of = from_relax("max", ("n", 10), lambda x: relax.op.max(x, axis=-1))
    given, result = np.full((2, 10), -1e30), np.zeros(2)
    compile_twins([of])["max"](given, result)
    np.testing.assert_array_equal(result, [-1e30, -1e30])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bits_are_those_of_the_operators_own_dtype(dtype: str) -> None:
    whole = dtype.replace("float", "int")
    given = te.placeholder((4,), dtype, name="given")

    def following(i: Any) -> Any:
        bits = tirx.reinterpret(whole, given[i] * tirx.const(3, dtype))
        return tirx.reinterpret(dtype, bits + tirx.const(1, whole))

    of = operator("bits", te.create_prim_func([given, te.compute((4,), following, "next")]))
    values, result = np.array([0.1, -1.5, 3e3, 1.0], dtype), np.zeros(4)
    compile_twins([of])["bits"](values.astype("f8"), result)
    product = (values.astype("f8") * 3).astype(dtype)
    np.testing.assert_array_equal(result, (product.view(whole) + 1).view(dtype))
