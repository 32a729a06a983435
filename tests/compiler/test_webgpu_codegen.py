"""What is the WGSL code generator's own: modules, bindings, functions spelt out, folded grids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax, te, tirx

from tapml.plan.graph_plan import Operator
from tapml_targets.driver import Driver
from tapml_targets.errors import CompileError
from tapml_targets.library import BufferArgument, Library, ScalarArgument, launches
from tapml_targets.limits import Limits
from tapml_targets.target import Target
from tapml_targets.webgpu.module_text import read_module
from tests.compiler.operators import (
    matmul_transposed,
    operator,
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


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_a_scan_gives_each_row_a_thread(adapter: Driver, name: str, axis: int) -> None:
    of = scan(name, (3, "n", 7), lambda x: getattr(relax.op, name)(x, axis=axis))
    given = np.random.default_rng(0).uniform(0.9, 1.1, (3, 150, 7)).astype(np.float32)
    result = apply(adapter, of, given, given)
    expected = getattr(np, name)(given.astype(np.float64), axis)
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_conditions_take_both_sides(adapter: Driver) -> None:
    """A short circuit is a branch: chains of them took SwiftShader's compiler gigabytes."""
    rows = tirx.Var("n", "int64")
    given = te.placeholder((rows, 8), "float32", name="given")

    def shifted(i: Any, j: Any) -> Any:
        inside = tirx.all(i >= 1, tirx.any(j == 2, j >= 5))
        return tirx.if_then_else(inside, given[i - 1, j], tirx.const(-1.0, "float32"))

    made = te.compute((rows, 8), shifted, "made")
    of = operator("shifted", te.create_prim_func([given, made]))
    values = np.arange(40, dtype=np.float32).reshape(5, 8)
    expected = np.full_like(values, -1)
    expected[1:, [2, 5, 6, 7]] = values[:-1, [2, 5, 6, 7]]
    np.testing.assert_array_equal(apply(adapter, of, values, values), expected)
    (module,) = compiled(of).modules
    assert b" & " in module.code
    assert b"&&" not in module.code
    assert b"||" not in module.code


def test_each_kernel_is_a_module_without_enable_lines() -> None:
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


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sine_and_cosine_are_accurate_far_from_zero(adapter: Driver, name: str) -> None:
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


def test_float64_is_refused_by_name() -> None:
    with pytest.raises(CompileError, match="'given_ptr' has elements of type float64"):
        compiled(elementwise(lambda x: x * 2, "float64"))


def test_a_grid_beyond_one_axis_is_folded(adapter: Driver) -> None:
    """70,000 workgroups of 32 threads; an axis has 65,535."""
    target = Target("webgpu", limits=Limits(max_threads_per_block=32, max_binding_bytes=128 << 20))
    given = np.arange(70_000 * 32, dtype=np.float32).reshape(-1, 8)
    _, result = run(adapter, compiled(scale(), target), "scale", [given, np.zeros_like(given)])
    np.testing.assert_array_equal(result, 2 * given)
