"""What every code generator makes of an operator, and that it is right on every device."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from msgspec.structs import replace
from tvm import relax, te, tirx, topi

from tapml.plan.graph_plan import Operator
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.conformance_kernels import kernel_table
from tapml_targets.driver import Driver
from tapml_targets.errors import CompileError
from tapml_targets.library import Library, Parameter, launches
from tapml_targets.library_format import pack, unpack
from tapml_targets.limits import Limits
from tapml_targets.platforms import function_kind, platform_names, platform_part
from tapml_targets.target import Target
from tests.compiler.operators import (
    assert_sums_are_repeated,
    from_relax,
    matmul_transposed,
    operator,
    repeated_sum,
    run,
    scale,
    softmax,
    source,
)
from tests.targets.conformance.devices import with_pointers

pytestmark = pytest.mark.run_first

Array = np.ndarray[Any, Any]
every_platform = pytest.mark.parametrize("platform", platform_names())
every_grid = pytest.mark.parametrize(
    "platform", [name for name in platform_names() if kernel_table(name).POINTERS]
)


def generate(of: OperatorSource, target: Target) -> Library:
    """The platform's own generator."""
    made: Library = platform_part(target.platform, "codegen").generate(of, target)
    return made


@cache
def compiled(make: Callable[[], Operator], platform: str, **options: str) -> Library:
    """The Library of an operator, made once for all devices of a platform."""
    return generate(source(make()), Target(platform, options=tuple(sorted(options.items()))))


def apply(driver: Driver, make: Callable[[], Operator], given: Array, like: Array) -> Array:
    """The operator's only output for one input."""
    library = compiled(make, driver.description.platform)
    (name,) = library.operators
    _, found = run(driver, library, name, [given, np.zeros_like(like)])
    return found


def require_half(driver: Driver) -> None:
    if "float16" not in driver.description.limits.features:
        pytest.skip(f"{driver.description.name} has no float16")


def in_form(platform: str, *arguments: Any, **keywords: Any) -> Operator:
    """An operator in the form that the platform compiles: a serial loop or kernels."""
    kind = {"cpu": "llvm", "gpu": "opencl"}[function_kind(platform)]
    return from_relax(*arguments, kind=kind, **keywords)


@cache
def elementwise(compute: Callable[[Any], Any], dtype: str = "float32") -> Operator:
    """A function of each element of ``(n, 8)``."""
    given = te.placeholder((tirx.Var("n", "int64"), 8), dtype, name="given")
    made = te.compute(given.shape, lambda i, j: compute(given[i, j]), "made")
    return operator("elementwise", te.create_prim_func([given, made]))


@pytest.mark.parametrize("rows", [1, 3, 70])
def test_a_softmax_with_dynamic_rows_is_right(driver: Driver, rows: int) -> None:
    given = np.random.default_rng(rows).standard_normal((rows, 100), np.float32)
    powers = np.exp(given.astype(np.float64))
    expected = powers / powers.sum(-1, keepdims=True)
    np.testing.assert_allclose(apply(driver, softmax, given, given), expected, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 5, 33])
def test_a_product_with_dynamic_rows_is_right(driver: Driver, rows: int) -> None:
    rng = np.random.default_rng(rows)
    given, weight = rng.standard_normal((rows, 48), "f4"), rng.standard_normal((32, 48), "f4")
    library = compiled(matmul_transposed, driver.description.platform)
    *_, result = run(driver, library, "matmul", [given, weight, np.zeros((rows, 32), "f4")])
    np.testing.assert_allclose(result, given @ weight.T, atol=1e-4)


def test_a_function_that_the_schedule_rejects_is_correct_without_it(driver: Driver) -> None:
    given = np.random.default_rng(1).standard_normal((1, 8, 5, 8), np.float32)
    like = np.zeros((1, 2, 4, 5, 3), np.float32)
    assert_sums_are_repeated(apply(driver, repeated_sum, given, like), given)


def product_over_one() -> Operator:
    """A bias behind a product over one element."""
    given, bias = te.placeholder((4, 1), "float32", "given"), te.placeholder((4,), name="bias")
    over = te.reduce_axis((0, 1), "k")
    made = te.compute((4,), lambda i: te.sum(given[i, over] * 2.0, axis=over), "made")
    added = te.compute((4,), lambda i: bias[i] + made[i], "added")
    return operator("biased", te.create_prim_func([given, bias, added]))


def test_what_follows_a_sum_over_one_element_is_added_once(driver: Driver) -> None:
    """TVM inlines it into the first value of the sum as well."""
    given, bias = np.arange(4, dtype="f4").reshape(4, 1), np.full(4, 10, "f4")
    library = compiled(product_over_one, driver.description.platform)
    *_, found = run(driver, library, "biased", [given, bias, np.zeros(4, "f4")])
    np.testing.assert_array_equal(found, given[:, 0] * 2 + 10)


def scattered() -> Operator:
    """Loops that are no blocks, for which dlight has no schedule."""
    shapes = {"given": (5, 4), "places": (2, 4), "values": (2, 4)}
    given, places, values = (
        te.placeholder(shape, "int32" if name == "places" else "float32", name)
        for name, shape in shapes.items()
    )
    made = topi.scatter_elements(given, places, values, 0)
    return operator("scattered", te.create_prim_func([given, places, values, made]))


def test_loops_without_a_schedule_run_on_one_thread(driver: Driver) -> None:
    given, values = np.arange(20, dtype="f4").reshape(5, 4), np.full((2, 4), -1, "f4")
    places = np.array([[0, 1, 2, 3], [4, 4, 0, 0]], "i4")
    library = compiled(scattered, driver.description.platform)
    *_, found = run(driver, library, "scattered", [given, places, values, np.zeros_like(given)])
    expected = given.copy()
    np.put_along_axis(expected, places.astype(int), values, 0)
    np.testing.assert_array_equal(found, expected)


@cache
def scan(platform: str, name: str, axis: int) -> Library:
    of = in_form(platform, name, (3, 150, 7), lambda x: getattr(relax.op, name)(x, axis=axis))
    return generate(source(of), Target(platform))


def all_of_booleans(x: Any) -> Any:
    """What the four bitwise operators give for `x` and its rows turned round."""
    other = relax.op.flip(x, 0)
    two = (relax.op.bitwise_and, relax.op.bitwise_or, relax.op.bitwise_xor)
    return relax.op.concat([relax.op.bitwise_not(x), *(each(x, other) for each in two)], 0)


def test_bitwise_operators_on_booleans_are_logical(driver: Driver) -> None:
    """C makes an int of a bool first; shading languages have no such operators."""
    given = np.random.default_rng(0).random((6, 20)) < 0.5
    other = given[::-1]
    expected = np.concatenate([~given, given & other, given | other, given ^ other])
    of = from_relax("booleans", (6, 20), all_of_booleans, dtype="bool")
    np.testing.assert_array_equal(apply(driver, lambda: of, given, expected), expected)
    numbers = np.arange(-10, 10, dtype=np.int32)
    bits = from_relax("bits", (20,), relax.op.bitwise_not, dtype="int32")
    np.testing.assert_array_equal(apply(driver, lambda: bits, numbers, numbers), ~numbers)


@pytest.mark.parametrize(("name", "axis"), [("cumsum", 1), ("cumprod", 1), ("cumprod", 2)])
def test_a_scan_is_right(driver: Driver, name: str, axis: int) -> None:
    given = np.random.default_rng(0).uniform(0.9, 1.1, (3, 150, 7)).astype(np.float32)
    library = scan(driver.description.platform, name, axis)
    _, result = run(driver, library, name, [given, np.zeros_like(given)])
    expected = getattr(np, name)(given.astype(np.float64), axis)
    np.testing.assert_allclose(result, expected, rtol=1e-4)


@cache
def sort(platform: str) -> Library:
    of = in_form(platform, "sort", (2, "n"), lambda x: relax.op.sort(x, axis=-1))
    return generate(source(of), Target(platform))


@with_pointers
@pytest.mark.parametrize("length", [1, 3, 128, 129, 1000])
def test_a_sort_is_right_at_any_length(driver: Driver, length: int) -> None:
    given = np.random.default_rng(0).standard_normal((2, length), np.float32)
    library = sort(driver.description.platform)
    _, result = run(driver, library, "sort", [given, np.zeros_like(given)])
    np.testing.assert_array_equal(result, np.sort(given, -1))


@with_pointers
def test_topk_gives_the_largest_and_where_they_are(driver: Driver) -> None:
    platform = driver.description.platform
    of = in_form(platform, "topk", (2, "n"), lambda x: relax.op.topk(x, 3, axis=-1), outputs=2)
    given = np.random.default_rng(0).standard_normal((2, 500), np.float32)
    outputs = [np.zeros((2, 3), "f4"), np.zeros((2, 3), "i4")]
    library = generate(source(of), Target(platform))
    _, values, indices = run(driver, library, "topk", [given, *outputs])
    expected = np.argsort(-given, axis=-1, kind="stable")[:, :3]
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(given, expected, -1))


def test_an_argmax_gives_int64(driver: Driver) -> None:
    """The first of equal numbers, also of a row of minus infinities."""

    def argmax() -> Operator:
        return from_relax("argmax", ("n", "m"), lambda x: relax.op.argmax(x, axis=-1))

    given = np.random.default_rng(4).standard_normal((5, 300), np.float32)
    given[3], given[4, 7:9] = -np.inf, 9
    found = apply(driver, argmax, given, np.zeros(5, np.int64))
    np.testing.assert_array_equal(found, given.argmax(-1))


def test_the_largest_of_integers_may_be_the_least_of_all(driver: Driver) -> None:
    given = np.full((2, 300), np.iinfo(np.int32).min, np.int32)
    given[1, 40] = -5
    largest = from_relax("max", ("n", 300), lambda x: relax.op.max(x, axis=-1), dtype="int32")
    found = apply(driver, lambda: largest, given, given[:, 0])
    np.testing.assert_array_equal(found, given.max(-1))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_extremes_begin_at_an_infinity(driver: Driver, dtype: str) -> None:
    if dtype == "float16":
        require_half(driver)
    given = np.full((2, 300), -np.inf, dtype)
    given[1, 40] = -5
    largest = from_relax("max", ("n", 300), lambda x: relax.op.max(x, axis=-1), dtype=dtype)
    found = apply(driver, lambda: largest, given, given[:, 0])
    np.testing.assert_array_equal(found, given.max(-1))
    pool = from_relax(
        "pool", (1, 1, 4, 4), lambda x: relax.op.nn.max_pool2d(x, (2, 2), (2, 2), (1, 1)),
        dtype=dtype,
    )  # fmt: skip
    image = np.full((1, 1, 4, 4), -np.inf, dtype)
    expected = np.full((1, 1, 3, 3), -np.inf, dtype)
    found = apply(driver, lambda: pool, image, expected)
    np.testing.assert_array_equal(found, expected)


def extremes() -> Operator:
    """Of each row: relu, a clamp, and the larger of it and the row backwards."""

    def of(x: Any) -> Any:
        back = relax.op.flip(x, axis=1)
        clamped = relax.op.clip(relax.op.nn.relu(x), 0.5, 2.0)
        return relax.op.maximum(relax.op.minimum(x, back), clamped)

    return from_relax("extremes", ("n", 5), of)


def test_extremes_keep_nan(driver: Driver) -> None:
    given = np.random.default_rng(6).standard_normal((4, 300), np.float32)
    given[1, 0], given[2, 299], given[3, 70:90] = np.nan, np.nan, np.nan
    for name in ("max", "min"):
        for operation, like in ((name, given[:, 0]), (f"arg{name}", np.zeros(4, np.int64))):
            reduce = getattr(relax.op, operation)
            of = from_relax(operation, ("n", 300), partial(reduce, axis=-1))
            found = apply(driver, partial(as_given, of), given, like)
            np.testing.assert_array_equal(found, getattr(given, operation)(-1))
    row = np.array([[np.nan, -1, 3, 1, 0], [0, 1, np.nan, -np.inf, np.inf]], np.float32)
    low = np.minimum(row, row[:, ::-1])
    expected = np.maximum(low, np.clip(np.maximum(row, 0), 0.5, 2))
    np.testing.assert_array_equal(apply(driver, extremes, row, row), expected)


def as_given(of: Operator) -> Operator:
    return of


CURVES: dict[str, Callable[..., Any]] = {
    "tanh": np.tanh, "sinh": np.sinh, "asinh": np.arcsinh, "atanh": np.arctanh,
    "asin": np.arcsin, "atan": np.arctan, "acos": np.arccos, "acosh": np.arccosh,
    "exp": np.exp, "log": np.log, "erf": np.vectorize(math.erf),
}  # fmt: skip


@pytest.mark.parametrize("name", CURVES)
def test_curves_have_their_digits_near_zero_and_at_their_ends(driver: Driver, name: str) -> None:
    near = np.logspace(-30, -1, 40)
    parts = [near, -near, 0.2 + 7 * near, np.array([0.999, -1.0])]
    if name in {"acosh", "log"}:
        parts = [1 + near, 1 + 9 * near] if name == "acosh" else [near, 1.5 + near]
    given = np.concatenate(parts).astype(np.float32)[None]
    if name in {"asin", "acos", "atanh"}:
        given = given.clip(-1, 1)
    edges = {"exp": [np.inf, -np.inf, 0, -1], "log": [np.inf, -np.inf, 0, -1, 1e-40]}
    given = np.append(given, np.array([[*edges.get(name, []), np.nan]], np.float32), axis=1)
    of = from_relax(name, given.shape, getattr(relax.op, name))
    found = apply(driver, partial(as_given, of), given, given)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = CURVES[name](given.astype(np.float64))
    np.testing.assert_allclose(found, expected.astype(np.float32), rtol=1e-6)


def test_a_cast_to_bfloat16_rounds_inside_a_kernel(driver: Driver) -> None:
    def there_and_back() -> Operator:
        return from_relax(
            "rounded", (4, 64),
            lambda x: relax.op.astype(relax.op.astype(x, "bfloat16"), "float32"),
        )  # fmt: skip

    given = np.random.default_rng(5).standard_normal((4, 64), np.float32)
    given[0, :4] = 1 + 2**-8, 1 + 3 * 2**-8, np.inf, -np.inf  # two halfway between neighbours
    found = apply(driver, there_and_back, given, given)
    np.testing.assert_array_equal(found, given.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_an_integer_beside_the_tensors_reaches_the_kernel(driver: Driver) -> None:
    start = tirx.Var("start", "int64")
    given = te.placeholder((16,), "float32", name="given")
    window = te.compute((4,), lambda i: given[start + i], "window")
    of = operator("window", te.create_prim_func([given, window, start]), symbols=("start",))
    values = np.arange(16, dtype=np.float32)
    library = generate(source(of), Target(driver.description.platform))
    _, result = run(driver, library, "window", [values, np.zeros(4, "f4")], {"start": 5})
    np.testing.assert_array_equal(result, [5, 6, 7, 8])


@pytest.mark.parametrize("factor", [1.0000004, 0.1, -0.7978845608028654, 3.4028234663852886e38])
def test_constants_keep_every_digit(driver: Driver, factor: float) -> None:
    given = np.ones((2, 8), np.float32)
    result = apply(driver, lambda: scale(factor=factor), given, given)
    np.testing.assert_array_equal(result, np.full((2, 8), factor, np.float32))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_infinities_and_nan_are_constants_too(driver: Driver, value: float, dtype: str) -> None:
    if dtype == "float16":
        require_half(driver)

    def positive(x: Any) -> Any:
        return tirx.if_then_else(x > 0, x, tirx.const(value, dtype))

    given = np.array([[1, -1] * 4], dtype)
    found = apply(driver, lambda: elementwise(positive, dtype), given, given)
    np.testing.assert_array_equal(found, np.array([[1, value] * 4], dtype))


@pytest.mark.parametrize("exponent", [2.0, 3.0, 5.0, -1.0, 0.5, 0.0])
def test_a_power_of_a_negative_number_is_what_it_is_in_c(driver: Driver, exponent: float) -> None:
    given = np.array([[-3, -1, -0.5, 0.25, 1, 2, 3, 1e-3]], np.float32)
    check_power(driver, given, exponent)


@pytest.mark.parametrize("exponent", [-0.5, -1.0, -2.0, 5.0])
def test_a_power_of_zero_or_infinity_is_what_it_is_in_c(driver: Driver, exponent: float) -> None:
    """Implementations of WGSL give 0, NaN or 1.7e38 for one over zero."""
    given = np.array([[0.0, -0.0, np.inf, -np.inf, np.nan, -2, 4, 1]], np.float32)
    check_power(driver, given, exponent)


def check_power(driver: Driver, given: Array, exponent: float) -> None:
    def power(x: Any) -> Any:
        return tirx.power(x, tirx.const(exponent, "float32"))

    with np.errstate(invalid="ignore", divide="ignore"):
        expected = given.astype(np.float64) ** exponent
    found = apply(driver, lambda: elementwise(power), given, given)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_nan_is_distinguished_from_a_number(driver: Driver, name: str, dtype: str) -> None:
    if dtype == "float16":
        require_half(driver)
    given = np.array([[0.0, np.nan, np.inf, -np.inf, -np.nan]], dtype)
    made = from_relax(name, ("n", 5), getattr(relax.op, name), dtype=dtype)
    result = apply(driver, lambda: made, given, np.zeros(given.shape, bool))
    np.testing.assert_array_equal(result, getattr(np, name)(given))


def combined_comparisons(x: Any) -> Any:
    """What TVM's passes would change for a NaN, of `x` and its rows turned round."""
    op, y = relax.op, relax.op.flip(x, 1)
    less, more, unlike = op.less(x, y), op.greater(x, y), op.not_equal(x, y)
    return op.stack([
        unlike, op.logical_not(less), op.logical_not(op.equal(x, y)), op.logical_not(unlike),
        op.logical_or(less, more), op.logical_or(less, op.greater_equal(x, y)),
        op.logical_not(op.logical_and(less, op.greater(x, op.zeros_like(x)))),
    ])  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_comparisons_keep_what_they_say_of_nan_when_they_are_combined(
    driver: Driver, dtype: str
) -> None:
    if dtype == "float16":
        require_half(driver)
    given = np.array([[1, 2, np.nan, 1, np.inf], [np.nan, -1, 0, 3, np.nan]], dtype)
    x, y = given, given[:, ::-1]
    expected = np.stack(
        [
            x != y,
            ~(x < y),
            x != y,
            x == y,
            (x < y) | (x > y),
            (x < y) | (x >= y),
            ~((x < y) & (x > 0)),
        ]
    )
    of = from_relax("compared", given.shape, combined_comparisons, dtype=dtype)
    found = apply(driver, partial(as_given, of), given, expected)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_numbers_are_right(driver: Driver, dtype: str) -> None:
    if dtype == "float16":
        require_half(driver)
    values = np.array([[1, 2, 3, 4, -5, 6, 7, 8]] * 3, np.float32)
    half = values.astype(np.float16)
    bits = half if dtype == "float16" else (values.view(np.uint32) >> 16).astype(np.uint16)
    library = compiled(lambda: scale(dtype=dtype, factor=2.5), driver.description.platform)
    _, result = run(driver, library, "scale", [bits, np.zeros_like(bits)], dtype=dtype)
    wide = (result.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else result
    np.testing.assert_array_equal(wide.astype(np.float32), 2.5 * values)


@with_pointers
@pytest.mark.parametrize("schedule", ["fallback", "one-thread"])
@pytest.mark.parametrize("make", [softmax, matmul_transposed])
def test_an_operator_without_its_schedule_is_right(
    driver: Driver, make: Callable[[], Operator], schedule: str
) -> None:
    """Other kernels, the same numbers."""
    platform = driver.description.platform
    usual, plain = compiled(make, platform), compiled(make, platform, schedule=schedule)
    assert plain.modules != usual.modules
    (name,) = plain.operators
    if schedule == "one-thread":
        found = launches(plain.operators[name].statements)
        assert all((launch.grid, launch.block) == ((1, 1, 1), (1, 1, 1)) for launch in found)
    rng = np.random.default_rng(1)
    shapes = {"softmax": [(5, 100)], "matmul": [(5, 48), (32, 48)]}[name]
    given = [rng.standard_normal(shape, np.float32) for shape in shapes]
    result = np.zeros((5, 100 if len(given) == 1 else 32), np.float32)
    *_, first = run(driver, usual, name, [*given, result])
    *_, second = run(driver, plain, name, [*given, result])
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-5)


@with_pointers
@pytest.mark.parametrize("threads", [32, 64, 128])
def test_kernels_keep_to_the_threads_a_device_allows(driver: Driver, threads: int) -> None:
    target = Target(driver.description.platform, limits=Limits(max_threads_per_block=threads))
    made = {of.name: generate(source(of), target) for of in (softmax(), matmul_transposed())}
    for name, library in made.items():
        assert all(0 < k.threads_per_block <= threads for k in library.kernels.values()), name
    given = np.random.default_rng(0).standard_normal((3, 100), np.float32)
    _, result = run(driver, made["softmax"], "softmax", [given, np.zeros_like(given)])
    np.testing.assert_allclose(result.sum(-1), 1, rtol=1e-5)


@every_grid
def test_kernels_keep_to_the_shared_memory_a_device_allows(platform: str) -> None:
    target = Target(platform, limits=Limits(max_shared_memory_bytes=300))
    for of in (softmax(), matmul_transposed()):
        library = generate(source(of), target)
        assert all(k.shared_memory_bytes <= 300 for k in library.kernels.values()), of.name


@every_platform
@pytest.mark.parametrize("make", [softmax, matmul_transposed, scale])
def test_a_library_is_of_its_platform_and_every_launch_has_its_kernel(
    platform: str, make: Callable[[], Operator]
) -> None:
    library = compiled(make, platform)
    (program,) = library.operators.values()
    assert library.target == platform
    assert {each.kernel for each in launches(program.statements)} == library.kernels.keys()
    assert all(
        each.symbol.encode() in library.modules[each.module].code
        for each in library.kernels.values()
    )
    assert unpack(pack(library)) == library


@every_platform
def test_the_same_operator_gives_the_same_library(platform: str) -> None:
    usual = compiled(softmax, platform)
    assert generate(source(softmax()), Target(platform)) == usual
    assert compiled(softmax, platform, cache="bypass") == usual


@every_platform
def test_kernels_state_the_features_they_need_and_no_others(platform: str) -> None:
    """A function for the processor is compiled for what every processor has."""
    half = compiled(lambda: scale(dtype="float16"), platform)
    features = ("float16",) if kernel_table(platform).POINTERS else ()
    assert all(kernel.features == features for kernel in half.kernels.values())
    for dtype in ("float32", "bfloat16"):
        plain = generate(source(scale(dtype=dtype)), Target(platform))
        assert all(kernel.features == () for kernel in plain.kernels.values()), dtype


@every_platform
@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("fastmath", "1"), "have no option 'fastmath'; there are cache"),
        (("cache", "later"), "'cache' of .* is one of use, bypass, not 'later'"),
    ],
)
def test_an_unknown_option_is_refused(platform: str, option: tuple[str, str], words: str) -> None:
    with pytest.raises(CompileError, match=words):
        generate(source(scale()), Target(platform, options=(option,)))


@every_platform
def test_an_extent_that_nothing_gives_is_named(platform: str) -> None:
    start = tirx.Var("start", "int64")
    given = te.placeholder((start + 4,), "float32", name="given")
    shifted = te.compute((start + 4,), lambda i: given[i] + tirx.const(1, "float32"), "shifted")
    of = operator("shift", te.create_prim_func([given, shifted]))
    with pytest.raises(CompileError, match=r"variables \(start,\) are used"):
        generate(source(of), Target(platform))


@every_platform
def test_a_function_that_does_not_fit_its_parameters_is_refused(platform: str) -> None:
    of, target = source(scale()), Target(platform)
    fewer = OperatorSource(of.name, of.function, of.parameters[:1])
    with pytest.raises(
        CompileError, match="declares 1 tensors and 0 symbols, its function takes 2"
    ):
        generate(fewer, target)
    wrong = (replace(of.parameters[0], dtype="int32"), of.parameters[1])
    with pytest.raises(CompileError, match="'p0' is declared int32, its function takes float32"):
        generate(OperatorSource(of.name, of.function, wrong), target)
    flat = (Parameter("p0", ("n",), "float32", "input"), of.parameters[1])
    with pytest.raises(CompileError, match="'p0' has shape"):
        generate(OperatorSource(of.name, of.function, flat), target)


@every_platform
def test_text_that_is_no_function_is_refused(platform: str) -> None:
    with pytest.raises(CompileError, match="not TVM JSON"):
        generate(OperatorSource("odd", "{}", ()), Target(platform))
