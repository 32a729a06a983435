"""What the OpenCL code generator writes runs on a device and is right there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import relax, te, tirx

from tapml.graph.plan import Operator
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.driver import Driver
from tapml_targets.errors import CompileError
from tapml_targets.library import Condition, Loop, Parameter, launches
from tapml_targets.limits import Limits
from tapml_targets.opencl.codegen import generate
from tapml_targets.target import Target
from tests.compiler.operators import (
    OPENCL,
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


@pytest.mark.parametrize("rows", [1, 3, 70])
def test_a_softmax_with_dynamic_rows_is_right(driver: Driver, rows: int) -> None:
    given = np.random.default_rng(rows).standard_normal((rows, 100), np.float32)
    library = generate(source(softmax()), OPENCL)
    _, result = run(driver, library, "softmax", [given, np.full_like(given, np.nan)])
    powers = np.exp(given.astype(np.float64))
    np.testing.assert_allclose(result, powers / powers.sum(-1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 5, 33])
def test_a_product_with_dynamic_rows_is_right(driver: Driver, rows: int) -> None:
    rng = np.random.default_rng(rows)
    given, weight = rng.standard_normal((rows, 48), "f4"), rng.standard_normal((32, 48), "f4")
    library = generate(source(matmul_transposed()), OPENCL)
    *_, result = run(driver, library, "matmul", [given, weight, np.zeros((rows, 32), "f4")])
    np.testing.assert_allclose(result, given @ weight.T, atol=1e-4)


def test_where_dlight_raises_whatever_it_is_the_plain_schedule_is_right(driver: Driver) -> None:
    given = np.random.default_rng(1).standard_normal((1, 8, 5, 8), np.float32)
    library = generate(source(repeated_sum()), OPENCL)
    _, result = run(driver, library, "repeated_sum", [given, np.zeros((1, 2, 4, 5, 3), "f4")])
    assert_sums_are_repeated(result, given)


@pytest.mark.parametrize("length", [1, 3, 128, 129, 1000])
def test_a_sort_runs_its_host_loops_and_workspaces(driver: Driver, length: int) -> None:
    sort = from_relax("sort", (2, "n"), lambda x: relax.op.sort(x, axis=-1), kind="opencl")
    library = generate(source(sort), OPENCL)
    program = library.operators["sort"]
    assert program.workspaces
    assert any(isinstance(s, Condition) for s in program.statements)
    given = np.random.default_rng(0).standard_normal((2, length), np.float32)
    _, result = run(driver, library, "sort", [given, np.zeros_like(given)])
    np.testing.assert_array_equal(result, np.sort(given, -1))


def test_topk_gives_the_largest_and_where_they_are(driver: Driver) -> None:
    topk = from_relax(
        "topk", (2, "n"), lambda x: relax.op.topk(x, 3, axis=-1), outputs=2, kind="opencl"
    )
    given = np.random.default_rng(0).standard_normal((2, 500), np.float32)
    outputs = [np.zeros((2, 3), "f4"), np.zeros((2, 3), "i4")]
    library = generate(source(topk), OPENCL)
    _, values, indices = run(driver, library, "topk", [given, *outputs])
    expected = np.argsort(-given, axis=-1, kind="stable")[:, :3]
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(given, expected, -1))


def test_the_scan_that_tvm_gets_wrong_still_compiles_with_its_loops() -> None:
    scan = from_relax("cumsum", (4, 300), lambda x: relax.op.cumsum(x, axis=-1), kind="opencl")
    library = generate(source(scan), OPENCL)
    assert len(library.kernels) >= 2
    assert library.operators["cumsum"].workspaces


@pytest.mark.parametrize(
    ("scan", "numpy_scan", "axis"),
    [
        (relax.op.cumsum, np.cumsum, 1),
        (relax.op.cumprod, np.cumprod, 1),
        (relax.op.cumprod, np.cumprod, 2),
    ],
)
def test_a_scan_s_threads_have_their_own_variables(
    driver: Driver, scan: Callable[..., Any], numpy_scan: Callable[..., Any], axis: int
) -> None:
    """TVM reserves them beside the launch, where one would be shared by all threads."""
    of = from_relax("scan", (2, 600, 7), lambda x: scan(x, axis=axis), kind="opencl")
    library = generate(source(of), OPENCL)
    (code,) = (module.code.decode() for module in library.modules)
    assert re.search(r"int \w+\[1\];", code)
    given = np.random.default_rng(0).uniform(0.9, 1.1, (2, 600, 7)).astype(np.float32)
    _, result = run(driver, library, "scan", [given, np.zeros_like(given)])
    np.testing.assert_allclose(result, numpy_scan(given.astype(np.float64), axis), rtol=1e-4)


def test_kernels_keep_to_the_threads_a_device_allows() -> None:
    target = Target("opencl", limits=Limits(max_threads_per_block=32))
    for of in (softmax(), matmul_transposed(), scale()):
        library = generate(source(of), target)
        assert all(0 < k.threads_per_block <= 32 for k in library.kernels.values()), of.name


def test_a_schedule_kind_other_than_the_code_kind_can_be_chosen(driver: Driver) -> None:
    target = Target("opencl", options=(("schedule_kind", "webgpu"),))
    given = np.random.default_rng(0).standard_normal((3, 100), np.float32)
    library = generate(source(softmax()), target)
    _, result = run(driver, library, "softmax", [given, np.zeros_like(given)])
    np.testing.assert_allclose(result.sum(-1), 1, rtol=1e-5)


def options(**values: str) -> Target:
    return Target("opencl", options=tuple(sorted(values.items())))


@pytest.mark.parametrize("schedule", ["fallback", "one-thread"])
@pytest.mark.parametrize("of", [softmax, matmul_transposed])
def test_an_operator_without_its_schedule_is_right(
    driver: Driver, of: Callable[[], Operator], schedule: str
) -> None:
    """Other kernels, the same numbers."""
    rng = np.random.default_rng(1)
    shapes = {"softmax": [(5, 100)], "matmul": [(5, 48), (32, 48)]}[of().name]
    given = [rng.standard_normal(shape, np.float32) for shape in shapes]
    usual = generate(source(of()), OPENCL)
    plain = generate(source(of()), options(schedule=schedule))
    assert plain.modules != usual.modules
    if schedule == "one-thread":
        found = launches(plain.operators[of().name].statements)
        assert all((launch.grid, launch.block) == ((1, 1, 1), (1, 1, 1)) for launch in found)
    result = np.zeros((5, 100 if len(given) == 1 else 32), np.float32)
    *_, first = run(driver, usual, of().name, [*given, result])
    *_, second = run(driver, plain, of().name, [*given, result])
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-5)


def test_a_scan_runs_on_one_thread_in_its_form_for_processors(driver: Driver) -> None:
    scan = from_relax("cumsum", (4, 300), lambda x: relax.op.cumsum(x, axis=-1))
    library = generate(source(scan), options(schedule="one-thread"))
    _, result = run(driver, library, "cumsum", [np.ones((4, 300), "f4"), np.zeros((4, 300), "f4")])
    np.testing.assert_array_equal(result, np.tile(np.arange(1, 301, dtype="f4"), (4, 1)))


@pytest.mark.parametrize("scan", [relax.op.cumsum, relax.op.sort])
def test_what_was_written_with_threads_cannot_go_without(scan: Callable[..., Any]) -> None:
    of = from_relax("scan", (2, 64), lambda x: scan(x, axis=-1), kind="opencl")
    with pytest.raises(CompileError, match="written with its threads"):
        generate(source(of), options(schedule="one-thread"))


def test_the_options_of_the_build_are_the_target_s() -> None:
    def built(**values: str) -> tuple[str, ...]:
        return generate(source(scale()), options(**values)).modules[0].options

    assert built() == ()
    assert built(fast_math="1") == ("fast-math",)
    assert built(fast_math="1", optimiser="off") == ("fast-math", "no-optimiser")
    assert built(fast_math="1", math="precise") == ("exact-division",)


def test_precise_math_changes_the_head_of_the_text_alone() -> None:
    usual = generate(source(softmax()), OPENCL).modules[0].code
    exact = generate(source(softmax()), options(math="precise")).modules[0].code
    assert exact.startswith(b"#pragma OPENCL FP_CONTRACT OFF\n")
    assert exact.endswith(usual)


def test_a_compilation_anew_gives_the_same_kernels() -> None:
    usual, anew = generate(source(softmax()), OPENCL), options(compilation="anew")
    assert generate(source(softmax()), anew) == usual


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"fastmath": "1"}, "have no option 'fastmath'; there are compilation, fast_math"),
        ({"fast_math": "yes"}, "'fast_math' of opencl targets is one of 0, 1, not 'yes'"),
    ],
)
def test_an_option_that_means_nothing_is_refused(values: dict[str, str], words: str) -> None:
    with pytest.raises(CompileError, match=words):
        generate(source(scale()), options(**values))


def test_half_precision_kernels_say_so_and_enable_the_extension() -> None:
    library = generate(source(scale(dtype="float16")), OPENCL)
    assert all(kernel.features == ("float16",) for kernel in library.kernels.values())
    assert b"cl_khr_fp16 : enable" in library.modules[0].code


def test_single_precision_kernels_need_no_feature() -> None:
    library = generate(source(scale()), OPENCL)
    assert all(kernel.features == () for kernel in library.kernels.values())


def test_bfloat16_needs_no_feature_and_is_right(driver: Driver) -> None:
    library = generate(source(scale(dtype="bfloat16", factor=2.5)), OPENCL)
    assert all(kernel.features == () for kernel in library.kernels.values())
    values = np.array([[1, 2, 3, 4, -5, 6, 7, 8]], np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    _, result = run(driver, library, "scale", [bits, np.zeros_like(bits)], dtype="bfloat16")
    scaled = (result.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(scaled, 2.5 * values)


@pytest.mark.parametrize("factor", [1.0000004, 0.1, -0.7978845608028654, 3.4028234663852886e38])
def test_constants_keep_every_digit(driver: Driver, factor: float) -> None:
    library = generate(source(scale(factor=factor)), OPENCL)
    given = np.ones((2, 8), np.float32)
    _, result = run(driver, library, "scale", [given, np.zeros_like(given)])
    np.testing.assert_array_equal(result, np.full((2, 8), factor, np.float32))


def test_the_same_operator_gives_the_same_library() -> None:
    assert generate(source(softmax()), OPENCL) == generate(source(softmax()), OPENCL)


def test_an_integer_beside_the_tensors_reaches_the_kernel(driver: Driver) -> None:
    start = tirx.Var("start", "int64")
    given = te.placeholder((16,), "float32", name="given")
    window = te.compute((4,), lambda i: given[start + i], "window")
    of = operator("window", te.create_prim_func([given, window, start]), symbols=("start",))
    values = np.arange(16, dtype=np.float32)
    library = generate(source(of), OPENCL)
    _, result = run(driver, library, "window", [values, np.zeros(4, "f4")], {"start": 5})
    np.testing.assert_array_equal(result, [5, 6, 7, 8])


def test_an_extent_that_nothing_gives_is_named() -> None:
    start = tirx.Var("start", "int64")
    given = te.placeholder((start + 4,), "float32", name="given")
    shifted = te.compute((start + 4,), lambda i: given[i] + tirx.const(1, "float32"), "shifted")
    of = operator("shift", te.create_prim_func([given, shifted]))
    with pytest.raises(CompileError, match=r"variables \(start,\) are used"):
        generate(source(of), OPENCL)


def test_a_function_that_does_not_fit_its_parameters_is_refused() -> None:
    of = source(scale())
    fewer = OperatorSource(of.name, of.function, of.parameters[:1])
    with pytest.raises(
        CompileError, match="declares 1 tensors and 0 symbols, its function takes 2"
    ):
        generate(fewer, OPENCL)
    wrong = (replace(of.parameters[0], dtype="int32"), of.parameters[1])
    with pytest.raises(CompileError, match="'p0' is declared int32, its function takes float32"):
        generate(OperatorSource(of.name, of.function, wrong), OPENCL)
    flat = (Parameter("p0", ("n",), "float32", "input"), of.parameters[1])
    with pytest.raises(CompileError, match="'p0' has shape"):
        generate(OperatorSource(of.name, of.function, flat), OPENCL)


def test_text_that_is_no_function_is_refused() -> None:
    with pytest.raises(CompileError, match="not TVM JSON"):
        generate(OperatorSource("odd", "{}", ()), OPENCL)


def test_a_host_statement_without_a_counterpart_is_named() -> None:
    of = from_relax("sort", ("n",), relax.op.sort, kind="opencl")
    # The number of merge passes becomes the floor of a logarithm, which no expression says.
    host = OperatorSource(
        of.name, of.function.replace('"prim.ceil"', '"tirx.floor"'), of.parameters
    )
    assert host.function != of.function
    with pytest.raises(CompileError, match="the launch plan cannot express"):
        generate(host, OPENCL)


def test_every_launch_names_a_kernel_of_the_source() -> None:
    library = generate(source(softmax()), OPENCL)
    text = library.modules[0].code.decode()
    for launch in launches(library.operators["softmax"].statements):
        assert re.search(rf"__kernel void {library.kernels[launch.kernel].symbol}\(", text)


def test_loops_of_the_host_bound_their_own_symbol() -> None:
    sort = from_relax("sort", (2, "n"), lambda x: relax.op.sort(x, axis=-1), kind="opencl")
    program = generate(source(sort), OPENCL).operators["sort"]

    def loops(statements: tuple[object, ...]) -> list[Loop]:
        found = []
        for statement in statements:
            if isinstance(statement, Loop):
                found.append(statement)
            elif isinstance(statement, Condition):
                found += loops(statement.then)
        return found

    (loop,) = loops(program.statements)
    assert loop.extent == ("sub", ("ceil_log2", "n"), 7)
