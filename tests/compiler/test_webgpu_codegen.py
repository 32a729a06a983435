"""What the WGSL code generator writes runs on a device and is right there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax, te, tirx

from tapml.graph.plan import Operator
from tapml_targets.driver import Driver
from tapml_targets.errors import CompileError
from tapml_targets.library import BufferArgument, Library, ScalarArgument, launches
from tapml_targets.limits import Limits
from tapml_targets.target import Target
from tapml_targets.webgpu.module_text import read_module
from tests.compiler.operators import (
    assert_sums_are_repeated,
    from_relax,
    matmul_transposed,
    operator,
    repeated_sum,
    run,
    scale,
    softmax,
)
from tests.compiler.webgpu_operators import compiled, scan

Array = np.ndarray[Any, Any]


def elementwise(
    compute: Callable[[Any], Any], dtype: str = "float32", *, columns: int = 8
) -> Operator:
    """A function of each element of ``(n, columns)``."""
    rows = tirx.Var("n", "int64")
    given = te.placeholder((rows, columns), dtype, name="given")
    made = te.compute((rows, columns), lambda i, j: compute(given[i, j]), "made")
    return operator("elementwise", te.create_prim_func([given, made]))


def require_half(adapter: Driver) -> None:
    if "float16" not in adapter.description.limits.features:
        pytest.skip(f"{adapter.description.name} has no float16")


def apply(adapter: Driver, of: Operator, given: Array, like: Array) -> Array:
    """The operator's only output for one input."""
    _, found = run(adapter, compiled(of), of.name, [given, np.zeros_like(like)])
    return found


@pytest.mark.parametrize("rows", [1, 3, 70])
def test_a_softmax_with_dynamic_rows_is_right(adapter: Driver, rows: int) -> None:
    given = np.random.default_rng(rows).standard_normal((rows, 100), np.float32)
    result = apply(adapter, softmax(), given, given)
    powers = np.exp(given.astype(np.float64))
    np.testing.assert_allclose(result, powers / powers.sum(-1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 5, 33])
def test_a_product_with_dynamic_rows_is_right(adapter: Driver, rows: int) -> None:
    rng = np.random.default_rng(rows)
    given, weight = rng.standard_normal((rows, 48), "f4"), rng.standard_normal((32, 48), "f4")
    library = compiled(matmul_transposed())
    *_, result = run(adapter, library, "matmul", [given, weight, np.zeros((rows, 32), "f4")])
    np.testing.assert_allclose(result, given @ weight.T, atol=1e-4)


def test_where_dlight_raises_whatever_it_is_the_plain_schedule_is_right(adapter: Driver) -> None:
    given = np.random.default_rng(1).standard_normal((1, 8, 5, 8), np.float32)
    result = apply(adapter, repeated_sum(), given, np.zeros((1, 2, 4, 5, 3), "f4"))
    assert_sums_are_repeated(result, given)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_a_scan_gives_each_row_a_thread(adapter: Driver, name: str, axis: int) -> None:
    of = scan(name, (3, "n", 7), lambda x: getattr(relax.op, name)(x, axis=axis))
    given = np.random.default_rng(0).uniform(0.9, 1.1, (3, 150, 7)).astype(np.float32)
    result = apply(adapter, of, given, given)
    expected = getattr(np, name)(given.astype(np.float64), axis)
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_each_kernel_is_a_module_of_its_own_that_begins_with_no_dialect_s_line() -> None:
    sort = compiled(scan("sort", (2, "n"), lambda x: relax.op.sort(x, axis=-1)))
    half = compiled(scale(dtype="float16"))
    for library in (sort, half, compiled(softmax())):
        assert len(library.modules) == len(library.kernels)
        for kernel in library.kernels.values():
            module = library.modules[kernel.module]
            assert module.dialect == "wgsl"
            assert read_module(module.code).symbol == kernel.symbol
            assert b"enable" not in module.code
    assert all(kernel.features == ("float16",) for kernel in half.kernels.values())
    assert all(kernel.features == () for kernel in sort.kernels.values())


def launches_of(library: Library) -> list[Any]:
    return [
        launch for program in library.operators.values() for launch in launches(program.statements)
    ]


@pytest.mark.parametrize("of", [softmax, matmul_transposed, scale])
def test_a_launch_passes_the_bindings_and_then_the_members(of: Callable[[], Operator]) -> None:
    library = compiled(of())
    for launch in launches_of(library):
        kernel = library.kernels[launch.kernel]
        module = read_module(library.modules[kernel.module].code)
        kinds = [type(argument) for argument in launch.arguments]
        buffers, scalars = len(module.access), len(module.scalars)
        assert kinds == [BufferArgument] * buffers + [ScalarArgument] * scalars
        assert tuple(a.dtype for a in launch.arguments[buffers:]) == module.scalars
        assert launch.block == module.block
        assert kernel.shared_memory_bytes == module.workgroup_bytes


@pytest.mark.parametrize("threads", [32, 64, 128])
def test_kernels_keep_to_the_threads_a_device_allows(adapter: Driver, threads: int) -> None:
    target = Target("webgpu", limits=Limits(max_threads_per_block=threads))
    for of in (softmax(), matmul_transposed(), scale()):
        library = compiled(of, target)
        assert all(0 < k.threads_per_block <= threads for k in library.kernels.values()), of.name
    given = np.random.default_rng(0).standard_normal((3, 100), np.float32)
    _, result = run(adapter, compiled(softmax(), target), "softmax", [given, np.zeros_like(given)])
    np.testing.assert_allclose(result.sum(-1), 1, rtol=1e-5)


def test_kernels_keep_to_the_shared_memory_a_device_allows() -> None:
    target = Target("webgpu", limits=Limits(max_shared_memory_bytes=300))
    for of in (softmax(), matmul_transposed()):
        library = compiled(of, target)
        assert all(k.shared_memory_bytes <= 300 for k in library.kernels.values()), of.name


@pytest.mark.parametrize("schedule", ["fallback", "one-thread"])
@pytest.mark.parametrize("of", [softmax, matmul_transposed])
def test_an_operator_without_its_schedule_is_right(
    adapter: Driver, of: Callable[[], Operator], schedule: str
) -> None:
    rng = np.random.default_rng(1)
    shapes = {"softmax": [(5, 100)], "matmul": [(5, 48), (32, 48)]}[of().name]
    given = [rng.standard_normal(shape, np.float32) for shape in shapes]
    plain = compiled(of(), Target("webgpu", (("schedule", schedule),)))
    result = np.zeros((5, 100 if len(given) == 1 else 32), np.float32)
    *_, first = run(adapter, compiled(of()), of().name, [*given, result])
    *_, second = run(adapter, plain, of().name, [*given, result])
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-5)


def test_an_option_that_means_nothing_is_refused() -> None:
    with pytest.raises(CompileError, match="have no option 'fastmath'; there are compilation, max"):
        compiled(softmax(), Target("webgpu", (("fastmath", "1"),)))


@pytest.mark.parametrize("factor", [1.0000004, 0.1, -0.7978845608028654, 3.4028234663852886e38])
def test_constants_keep_every_digit(adapter: Driver, factor: float) -> None:
    given = np.ones((2, 8), np.float32)
    result = apply(adapter, scale(factor=factor), given, given)
    np.testing.assert_array_equal(result, np.full((2, 8), factor, np.float32))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_infinities_and_nan_are_constants_too(adapter: Driver, value: float, dtype: str) -> None:
    if dtype == "float16":
        require_half(adapter)
    of = elementwise(lambda x: tirx.if_then_else(x > 0, x, tirx.const(value, dtype)), dtype)
    given = np.array([[1, -1] * 4], dtype)
    np.testing.assert_array_equal(
        apply(adapter, of, given, given), np.array([[1, value] * 4], dtype)
    )


@pytest.mark.parametrize("exponent", [2.0, 3.0, 5.0, -1.0, 0.5, 0.0])
def test_a_power_of_a_negative_number_is_what_it_is_elsewhere(
    adapter: Driver, exponent: float
) -> None:
    given = np.array([[-3, -1, -0.5, 0.25, 1, 2, 3, 1e-3]], np.float32)
    of = elementwise(lambda x: tirx.power(x, tirx.const(exponent, "float32")))
    with np.errstate(invalid="ignore"):
        expected = given.astype(np.float64) ** exponent
    np.testing.assert_allclose(apply(adapter, of, given, given), expected, rtol=1e-5)


@pytest.mark.parametrize("exponent", [-0.5, -1.0, -2.0, 5.0])
def test_a_power_of_what_is_no_usual_number_is_what_it_is_elsewhere(
    adapter: Driver, exponent: float
) -> None:
    """As C has it: implementations of WGSL give 0, NaN or 1.7e38 for one over zero."""
    given = np.array([[0.0, -0.0, np.inf, -np.inf, np.nan, -2, 4, 1]], np.float32)
    of = elementwise(lambda x: tirx.power(x, tirx.const(exponent, "float32")))
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = given.astype(np.float64) ** exponent
    expected[0, 1] = -np.inf if exponent == -1 else expected[0, 1]
    np.testing.assert_allclose(apply(adapter, of, given, given), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_nan_is_told_by_its_bits(adapter: Driver, name: str, dtype: str) -> None:
    """naga compiles ``x != x`` to a comparison that is false for NaN."""
    if dtype == "float16":
        require_half(adapter)
    of = from_relax(name, ("n", 5), getattr(relax.op, name), dtype=dtype)
    given = np.array([[0.0, np.nan, np.inf, -np.inf, -np.nan]], dtype)
    result = apply(adapter, of, given, np.zeros(given.shape, bool))
    np.testing.assert_array_equal(result, getattr(np, name)(given))


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_waves_are_exact_far_from_zero_too(adapter: Driver, name: str) -> None:
    """A rotary embedding takes them of its positions; WebGPU promises nothing beyond pi."""
    of = elementwise(getattr(tirx, name))
    near, far = np.linspace(-8, 8, 4001), np.linspace(-99_999, 99_999, 4007)
    given = np.concatenate([near, far]).astype(np.float32).reshape(-1, 8)
    expected = getattr(np, name)(given.astype(np.float64))
    assert np.abs(apply(adapter, of, given, given) - expected).max() < 1.5e-7
    require_half(adapter)
    half = given[:400].astype(np.float16)
    of = elementwise(getattr(tirx, name), "float16")
    expected = getattr(np, name)(half.astype(np.float64))
    assert np.abs(apply(adapter, of, half, half) - expected).max() < 5e-4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_numbers_are_right(adapter: Driver, dtype: str) -> None:
    if dtype == "float16":
        require_half(adapter)
    values = np.array([[1, 2, 3, 4, -5, 6, 7, 8]] * 3, np.float32)
    half = values.astype(np.float16)
    bits = half if dtype == "float16" else (values.view(np.uint32) >> 16).astype(np.uint16)
    library = compiled(scale(dtype=dtype, factor=2.5))
    _, result = run(adapter, library, "scale", [bits, np.zeros_like(bits)], dtype=dtype)
    wide = (result.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else result
    np.testing.assert_array_equal(wide.astype(np.float32), 2.5 * values)


def test_float64_is_refused_by_name() -> None:
    with pytest.raises(CompileError, match="'given_ptr' has elements of type float64"):
        compiled(elementwise(lambda x: x * 2, "float64"))


def test_the_same_operator_gives_the_same_library() -> None:
    assert compiled(softmax()) == compiled(softmax())


def test_a_grid_beyond_one_axis_is_folded(adapter: Driver) -> None:
    """70,000 workgroups of 32 threads; an axis has 65,535."""
    target = Target("webgpu", limits=Limits(max_threads_per_block=32, max_binding_bytes=128 << 20))
    given = np.arange(70_000 * 32, dtype=np.float32).reshape(-1, 8)
    _, result = run(adapter, compiled(scale(), target), "scale", [given, np.zeros_like(given)])
    np.testing.assert_array_equal(result, 2 * given)


def test_an_argmax_that_is_an_int64_needs_no_other_kernel(adapter: Driver) -> None:
    of = from_relax("argmax", ("n", "m"), lambda x: relax.op.argmax(x, axis=-1))
    given = np.random.default_rng(4).standard_normal((5, 300), np.float32)
    _, found = run(adapter, compiled(of), "argmax", [given, np.full(5, -1, np.int64)])
    np.testing.assert_array_equal(found, given.argmax(-1))
