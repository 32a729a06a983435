"""64-bit integers in 32 bits: where that is proven right, and what is said where it is not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tvm import relax, te, tirx

from tapml.plan.graph_plan import Operator
from tapml_targets.codegen.symbol_bounds import MOST_BYTES, bounds_of
from tapml_targets.driver import Driver
from tapml_targets.errors import CompileError, InputError
from tapml_targets.expression import Expression, evaluate
from tapml_targets.library import Parameter
from tapml_targets.limits import Limits
from tapml_targets.target import Target
from tests.compiler.operators import from_relax, operator, run
from tests.compiler.webgpu_operators import compiled, scan, text

Array = np.ndarray[Any, Any]
BIG = 1 << 40


def of_elements(
    compute: Callable[[Any], Any], given: str, made: str, *, rows: Any = None
) -> Operator:
    """A function of each element of ``(n, 6)`` that changes its type."""
    rows = tirx.Var("n", "int64") if rows is None else rows
    source = te.placeholder((rows, 6), given, name="given")
    result = te.compute((rows, 6), lambda i, j: compute(source[i, j]), "result")
    assert str(result.dtype) == made
    return operator("elements", te.create_prim_func([source, result]))


def apply(adapter: Driver, of: Operator, given: Array, made: str) -> Array:
    _, found = run(adapter, compiled(of), of.name, [given, np.full(given.shape, 99).astype(made)])
    return found


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_token_ids_of_either_width_choose_rows(adapter: Driver, index: str) -> None:
    table = te.placeholder((50, 4), "float32", name="table")
    ids = te.placeholder((tirx.Var("n", "int64"),), index, name="ids")
    of = operator(
        "take",
        te.create_prim_func(
            [table, ids, te.compute((ids.shape[0], 4), lambda i, j: table[ids[i], j], "rows")]
        ),
    )
    rows = np.random.default_rng(0).standard_normal((50, 4), np.float32)
    chosen = np.array([3, 49, 0, 7], index)
    *_, found = run(adapter, compiled(of), "take", [rows, chosen, np.zeros((4, 4), "f4")])
    np.testing.assert_array_equal(found, rows[chosen])


def test_a_64_bit_number_is_clamped_as_if_it_had_64_bits(adapter: Driver) -> None:
    of = of_elements(
        lambda x: tirx.min(tirx.max(x, tirx.const(-7, "int64")), tirx.const(5, "int64")).astype(
            "int32"
        ),
        "int64",
        "int32",
    )
    given = np.array([[BIG, -BIG, 3, -100, (1 << 32) + 2, -(1 << 32)]], np.int64)
    np.testing.assert_array_equal(apply(adapter, of, given, "int32"), np.clip(given, -7, 5))


def test_a_64_bit_number_is_compared_as_if_it_had_64_bits(adapter: Driver) -> None:
    of = of_elements(lambda x: x < tirx.const(4, "int64"), "int64", "bool")
    given = np.array([[BIG, -BIG, 3, 4, (1 << 32) + 2, -(1 << 32) + 7]], np.int64)
    np.testing.assert_array_equal(apply(adapter, of, given, "bool"), given < 4)


def test_narrowing_a_64_bit_number_drops_its_upper_half(adapter: Driver) -> None:
    of = of_elements(lambda x: x.astype("int32") + tirx.const(1, "int32"), "int64", "int32")
    given = np.array([[0, -1, 5, (1 << 32) + 5, -(1 << 32) - 2, 1 << 30]], np.int64)
    np.testing.assert_array_equal(apply(adapter, of, given, "int32"), (given + 1).astype(np.int32))


LARGE = np.array([[BIG, -BIG - 1, 3, -7, (1 << 62) + 12345678901, -(1 << 33) + 5]], np.int64)


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda x: x + tirx.const(5, "int64"), LARGE + 5),
        (lambda x: x * x - x, LARGE * LARGE - LARGE),
        (lambda x: x.astype("float32"), LARGE.astype(np.float32)),
        (lambda x: tirx.floordiv(x, tirx.const(-7, "int64")), LARGE // -7),
        (lambda x: tirx.truncmod(x, tirx.const(-7, "int64")), np.fmod(LARGE, -7)),
        (lambda x: tirx.indexdiv(x, 3).astype("int32"), (LARGE // 3).astype(np.int32)),
        (lambda x: x < x * tirx.const(2, "int64"), LARGE < LARGE * 2),
        (lambda x: (x >> tirx.const(33, "int64")) ^ (x << tirx.const(5, "int64")),
         (LARGE >> 33) ^ (LARGE << 5)),
        (lambda x: x.astype("float32").astype("int64"), LARGE.astype(np.float32).astype(np.int64)),
        (lambda x: tirx.max(tirx.abs(x), x // 2), np.abs(LARGE)),
        (lambda x: tirx.Select(x > 0, tirx.const(BIG, "int64"), x),
         np.where(LARGE > 0, BIG, LARGE)),
    ],
)  # fmt: skip
def test_values_that_need_64_bits_are_computed_in_two_words(
    adapter: Driver, compute: Callable[[Any], Any], expected: Array
) -> None:
    made = str(expected.dtype)
    of = of_elements(compute, "int64", made)
    np.testing.assert_array_equal(apply(adapter, of, LARGE, made), expected)


def test_a_shift_that_is_narrowed_afterwards_needs_32_bits_alone(adapter: Driver) -> None:
    def shifted(x: Any) -> Any:
        return x.astype("int64") << tirx.const(3, "int64")

    of = of_elements(lambda x: shifted(x).astype("int32"), "int32", "int32")
    assert "tapml_wide" not in text(compiled(of))
    given = np.array([[1 << 28, 1 << 30, -1, 5, -(1 << 31), 0]], np.int32)
    expected = (given.astype(np.int64) << 3).astype(np.int32)
    np.testing.assert_array_equal(apply(adapter, of, given, "int32"), expected)


def test_a_small_number_is_written_with_its_sign(adapter: Driver) -> None:
    of = of_elements(
        lambda x: tirx.min(tirx.max(x, -50), 49).astype("int64") * tirx.const(3, "int64"),
        "int32",
        "int64",
    )
    given = np.arange(-300, 300, 25, dtype=np.int32).reshape(-1, 6)
    np.testing.assert_array_equal(apply(adapter, of, given, "int64"), np.clip(given, -50, 49) * 3)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_index_of_a_maximum_is_proven_to_be_small(adapter: Driver, axis: int) -> None:
    of = from_relax("argmax", ("n", "m"), lambda x: relax.op.argmax(x, axis=axis))
    given = np.random.default_rng(4).standard_normal((70, 130), np.float32)
    result = np.full(given.shape[1 - axis], -1, np.int64)
    _, found = run(adapter, compiled(of), "argmax", [given, result])
    np.testing.assert_array_equal(found, given.argmax(axis))


def test_a_running_sum_of_64_bits_is_one_of_two_words(adapter: Driver) -> None:
    of = scan("cumsum", (3, 40), lambda x: relax.op.cumsum(x, axis=1), dtype="int64")
    given = np.random.default_rng(4).integers(-BIG, BIG, (3, 40))
    _, found = run(adapter, compiled(of), of.name, [given, np.zeros_like(given)])
    np.testing.assert_array_equal(found, given.cumsum(1))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_count_of_predicates_is_proven_to_be_small(adapter: Driver, axis: int) -> None:
    def count(x: Any) -> Any:
        positive = relax.op.greater(x, relax.const(0.0))
        return relax.op.sum(relax.op.astype(positive, "int64"), axis=axis)

    of = from_relax("count", ("n", 515), count)
    given = np.random.default_rng(4).standard_normal((70, 515), np.float32)
    result = np.full(given.shape[1 - axis], -1, np.int64)
    _, found = run(adapter, compiled(of), "count", [given, result])
    np.testing.assert_array_equal(found, (given > 0).sum(axis))


def test_a_sum_of_numbers_that_may_be_large_is_one_of_two_words(adapter: Driver) -> None:
    of = from_relax(
        "sum", ("n", 515), lambda x: relax.op.sum(relax.op.astype(x, "int64"), 1), dtype="int32"
    )
    given = np.random.default_rng(4).integers(-(1 << 31), 1 << 31, (7, 515)).astype(np.int32)
    _, found = run(adapter, compiled(of), "sum", [given, np.zeros(7, np.int64)])
    np.testing.assert_array_equal(found, given.sum(1, dtype=np.int64))


def test_an_index_beside_the_tensors_must_fit_where_it_is_used(adapter: Driver) -> None:
    start = tirx.Var("start", "int64")
    given = te.placeholder((16,), "float32", name="given")
    window = te.compute((4,), lambda i: given[start + i], "window")
    of = operator("window", te.create_prim_func([given, window, start]), symbols=("start",))
    arrays = [np.arange(16, dtype=np.float32), np.zeros(4, "f4")]
    _, result = run(adapter, compiled(of), "window", arrays, {"start": 5})
    np.testing.assert_array_equal(result, [5, 6, 7, 8])
    with pytest.raises(InputError, match="does not fit int32"):
        run(adapter, compiled(of), "window", arrays, {"start": 1 << 32})


def test_multiples_of_a_symbol_are_no_part_of_a_remainder_by_it(adapter: Driver) -> None:
    """No shape bounds ``i * n * n``, of which 32 bits would have to hold every value."""
    n = tirx.Var("n", "int64")
    given = te.placeholder((n, 6), "float32", name="given")
    turned = te.compute(
        (n, 6), lambda i, j: given[((i * n + j) * n * 4 + i - 3) % (n * 2) % n, j], "turned"
    )
    of = operator("turned", te.create_prim_func([given, turned]))
    arrays = [np.arange(30, dtype=np.float32).reshape(5, 6), np.zeros((5, 6), "f4")]
    _, found = run(adapter, compiled(of), "turned", arrays)
    np.testing.assert_array_equal(found, np.roll(arrays[0], 3, axis=0))


def test_an_axis_behind_one_of_any_extent_is_known_by_its_own(adapter: Driver) -> None:
    """Rows of two experts become six heads, of which the last halves are turned."""
    rows = tirx.Var("n", "int64")
    heads, half = (tirx.IntImm("int64", 6) for _ in range(2))
    source = te.placeholder((rows * 2, 36), "float32", name="source")
    turned = te.compute(
        (heads, rows, half),
        lambda i, j, k: source[
            (j * 2 + (i * 12 + k + 6) // 36) % (rows * 2), (i * 12 + k + 6) % 36
        ],
        "turned",
    )
    of = operator("turn", te.create_prim_func([source, turned]))
    given = np.random.default_rng(0).standard_normal((14, 36), np.float32)
    _, found = run(adapter, compiled(of), "turn", [given, np.zeros((6, 7, 6), "f4")])
    np.testing.assert_array_equal(found, given.reshape(7, 6, 12)[..., 6:].transpose(1, 0, 2))


def test_a_remainder_by_a_symbol_is_less_than_the_symbol(adapter: Driver) -> None:
    n = tirx.Var("n", "int64")
    given = te.placeholder((n,), "float32", name="given")
    turned = te.compute((n,), lambda i: given[tirx.floormod(i - 3, n)], "turned")
    of = operator("turned", te.create_prim_func([given, turned]))
    arrays = [np.arange(10, dtype=np.float32), np.zeros(10, "f4")]
    _, found = run(adapter, compiled(of), "turned", arrays)
    np.testing.assert_array_equal(found, np.roll(arrays[0], 3))


@pytest.mark.parametrize("nbytes", [128 << 20, 1 << 30, 0])
def test_the_size_of_a_binding_bounds_the_indices(nbytes: int) -> None:
    of = of_elements(lambda x: x > tirx.const(0, "int8"), "int8", "bool")
    target = Target("webgpu", limits=Limits(max_binding_bytes=nbytes))
    assert "i64" not in text(compiled(of, target))


def test_proofs_hold_on_devices_that_bind_more_than_the_target() -> None:
    """A Library made for a phone runs on a desktop, with longer tensors than a phone binds."""
    wide = tirx.Var("n", "int64")
    given = te.placeholder((wide,), "int8", name="given")
    places = te.compute((wide,), lambda i: i * 100 + given[i].astype("int64"), "places")
    of = operator("places", te.create_prim_func([given, places]))
    for nbytes in (128 << 20, 1 << 30):
        target = Target("webgpu", limits=Limits(max_binding_bytes=nbytes))
        assert "tapml_wide_add" in text(compiled(of, target))


def test_an_index_that_no_shape_bounds_is_refused_by_name() -> None:
    start = tirx.Var("start", "int64")
    given = te.placeholder((16,), "float32", name="given")
    place = tirx.indexmod(start * 1000, 7)
    window = te.compute((4,), lambda i: given[place + i], "window")
    of = operator("window", te.create_prim_func([given, window, start]), symbols=("start",))
    with pytest.raises(CompileError, match=r"`start \* T.int64\(6\)` may be from -12884901888"):
        compiled(of)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "bool"])
def test_narrow_elements_are_copied_and_their_neighbours_left_alone(
    adapter: Driver, dtype: str
) -> None:
    of = of_elements(lambda x: x, dtype, dtype)
    given = np.random.default_rng(1).integers(0, 256, (35, 6), np.uint8).astype(dtype)
    np.testing.assert_array_equal(apply(adapter, of, given, dtype), given)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_arithmetic_on_narrow_integers_wraps_at_their_width(adapter: Driver, dtype: str) -> None:
    of = of_elements(
        lambda x: tirx.max(x + tirx.const(100, dtype), x * tirx.const(3, dtype)), dtype, dtype
    )
    given = np.arange(-120, 120, dtype=np.int32).astype(dtype).reshape(-1, 6)
    with np.errstate(over="ignore"):
        hundred, three = (np.array(value, dtype) for value in (100, 3))
        expected = np.maximum(given + hundred, given * three)
    np.testing.assert_array_equal(apply(adapter, of, given, dtype), expected)


def test_narrow_weights_become_floats(adapter: Driver) -> None:
    of = of_elements(lambda x: x.astype("float32") * tirx.const(0.5, "float32"), "int8", "float32")
    given = np.arange(-128, 124, dtype=np.int8).reshape(-1, 6)
    np.testing.assert_array_equal(apply(adapter, of, given, "float32"), given * np.float32(0.5))


def test_every_byte_but_zero_is_read_as_true(adapter: Driver) -> None:
    of = of_elements(lambda x: tirx.Select(x, tirx.const(1.0), tirx.const(2.0)), "bool", "float32")
    given = np.array([[True, False, True, True, False, False]])
    np.testing.assert_array_equal(apply(adapter, of, given, "float32"), np.where(given, 1, 2))


def test_no_access_is_wider_than_the_tensors_need() -> None:
    bindings = re.findall(
        r"var<storage, (\w+)> (\w+) : ([^;]+);",
        text(compiled(of_elements(lambda x: x > tirx.const(0, "int8"), "int8", "bool"))),
    )
    assert {name: (access, kind) for access, name, kind in bindings} == {
        "given_ptr": ("read", "array<u32>"),
        "result_ptr": ("read_write", "array<atomic<u32>>"),
    }


# What is known of symbols from shapes


def shaped(*shape: Expression, dtype: str = "float32") -> Parameter:
    return Parameter("t", shape, dtype, "input")


def test_a_symbol_is_bounded_by_the_tensor_that_has_it() -> None:
    bounds = bounds_of([shaped("n", 100), shaped("n", 4, "m")], 4 << 20)
    assert bounds.range_of("n") == (0, (1 << 20) // 100)
    assert bounds.range_of("m") == (0, 1 << 18)
    assert bounds.range_of(("mul", "n", ("mul", "m", 4))) == (0, 1 << 20)
    assert bounds_of([shaped("n")], 0).range_of("n") == (0, MOST_BYTES // 4)


def test_an_extent_that_is_computed_bounds_its_symbol_too() -> None:
    bounds = bounds_of([shaped(("add", "n", 3), ("mul", 2, "m"))], 1 << 12)
    assert bounds.range_of("n") == (0, 512)
    assert bounds.range_of("m") == (0, 512)


def test_an_unknown_symbol_has_no_bound() -> None:
    lower, upper = bounds_of([], 1 << 20).range_of("n")
    assert lower < -(1 << 60) < 1 << 60 < upper


EXPRESSIONS: st.SearchStrategy[Expression] = st.recursive(
    st.one_of(st.sampled_from(["n", "m"]), st.integers(-5, 300)),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["add", "sub", "mul", "min", "max"]), inner, inner),
        st.tuples(st.sampled_from(["floordiv", "floormod", "truncdiv"]), inner, st.integers(1, 9)),
        st.tuples(st.sampled_from(["shift_left", "shift_right"]), inner, st.integers(0, 5)),
        st.tuples(st.sampled_from(["lt", "eq", "and"]), inner, inner),
        st.tuples(st.just("select"), inner, inner, inner),
        st.tuples(st.just("bit_and"), inner, st.integers(0, 255)),
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@example(("truncdiv", -1, 2), 1, 1)
@given(EXPRESSIONS, st.integers(1, 64), st.integers(1, 64))
def test_values_stay_within_their_computed_ranges(expression: Expression, n: int, m: int) -> None:
    bounds = bounds_of([shaped("n", "m")], 4 * 64 * 64)
    lower, upper = bounds.range_of(expression)
    assert lower <= evaluate(expression, {"n": n, "m": m}) <= upper
