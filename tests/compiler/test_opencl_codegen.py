"""What is the OpenCL code generator's own: TVM's kernels for sorts and scans, and build options."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tapml_targets.codegen.source import OperatorSource
from tapml_targets.driver import Driver
from tapml_targets.errors import CompileError
from tapml_targets.library import Condition, Loop
from tapml_targets.opencl.codegen import generate
from tapml_targets.target import Target
from tests.compiler.operators import (
    OPENCL,
    from_relax,
    run,
    scale,
    softmax,
    source,
)


def test_a_sort_has_host_loops_and_workspaces() -> None:
    sort = from_relax("sort", (2, "n"), lambda x: relax.op.sort(x, axis=-1), kind="opencl")
    program = generate(source(sort), OPENCL).operators["sort"]
    assert program.workspaces
    assert any(isinstance(s, Condition) for s in program.statements)


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


def test_a_schedule_kind_other_than_the_code_kind_can_be_chosen(driver: Driver) -> None:
    target = Target("opencl", options=(("schedule_kind", "webgpu"),))
    given = np.random.default_rng(0).standard_normal((3, 100), np.float32)
    library = generate(source(softmax()), target)
    _, result = run(driver, library, "softmax", [given, np.zeros_like(given)])
    np.testing.assert_allclose(result.sum(-1), 1, rtol=1e-5)


def options(**values: str) -> Target:
    return Target("opencl", options=tuple(sorted(values.items())))


def test_a_scan_runs_on_one_thread_in_its_form_for_processors(driver: Driver) -> None:
    scan = from_relax("cumsum", (4, 300), lambda x: relax.op.cumsum(x, axis=-1))
    library = generate(source(scan), options(schedule="one-thread"))
    _, result = run(driver, library, "cumsum", [np.ones((4, 300), "f4"), np.zeros((4, 300), "f4")])
    np.testing.assert_array_equal(result, np.tile(np.arange(1, 301, dtype="f4"), (4, 1)))


@pytest.mark.parametrize("scan", [relax.op.cumsum, relax.op.sort])
def test_a_function_that_binds_threads_has_no_one_thread_schedule(scan: Callable[..., Any]) -> None:
    of = from_relax("scan", (2, 64), lambda x: scan(x, axis=-1), kind="opencl")
    with pytest.raises(CompileError, match="binds threads itself"):
        generate(source(of), options(schedule="one-thread"))


def test_build_options_follow_the_target() -> None:
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


def test_half_precision_kernels_say_so_and_enable_the_extension() -> None:
    library = generate(source(scale(dtype="float16")), OPENCL)
    assert all(kernel.features == ("float16",) for kernel in library.kernels.values())
    assert b"cl_khr_fp16 : enable" in library.modules[0].code


def test_a_host_statement_without_a_counterpart_is_named() -> None:
    of = from_relax("sort", ("n",), relax.op.sort, kind="opencl")
    # The number of merge passes becomes the floor of a logarithm, which no expression says.
    host = OperatorSource(
        of.name, of.function.replace('"prim.ceil"', '"tirx.floor"'), of.parameters
    )
    assert host.function != of.function
    with pytest.raises(CompileError, match="the launch plan cannot express"):
        generate(host, OPENCL)


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
