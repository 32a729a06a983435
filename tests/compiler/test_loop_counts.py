"""A kernel whose loops come near what a device was measured to end them at is named beforehand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tapml.compiler.compiler import Compiler
from tapml.compiler.loop_counts import loop_iterations
from tapml.compiler.preflight import LongLoop, long_loops
from tapml.compiler.reach import Reach
from tapml_targets.library import (
    BufferArgument,
    CodeModule,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    Parameter,
    ScalarArgument,
)
from tapml_targets.target import Target
from tests.compare.operators import make_operator

BOUND = 65_535


def counted(body: str, scalars: dict[int, int] | None = None) -> int:
    source = f"__kernel void k(__global float* restrict x, int n, long m) {{ {body} }}"
    return loop_iterations(source, "k", scalars or {})


@pytest.mark.parametrize(
    ("body", "iterations"),
    [
        ("x[0] = 1;", 0),
        ("for (int i = 0; i < 100; ++i) x[i] = i;", 100),
        ("for (int i = 2; i <= 9; i += 3) { x[i] = i; }", 3),
        ("for (int i = 0; i < 10; i++) for (int j = 0; j < 4; j++) { x[i] += j; }", 50),
        ("for (int i = 0; i < 10; ++i) x[i] = 0; for (int j = 0; j < 7; ++j) x[j] = 1;", 17),
        ("for (int i = 0; i < n; ++i) { for (long j = 0; j < (m + 15) / 16; ++j) ; }", 1000 * 5),
        ("if (n > 1) { for (int i = 0; i < 9; ++i) ; } else for (int i = 0; i < 4; ++i) ;", 9),
        ("for (int i = 0; i < 8; ++i) for (int j = 0; j <= i; ++j) x[j] = 0;", 8 * 9),
        ("float4 v = (float4){1, 2, 3, 4}; for (int i = 0; i < ((int)6); ++i) x[i] = v.x;", 6),
        ("/* for (int i = 0; i < 99; ++i) */ // for (int i = 0; i < 98; ++i)\n x[0] = 0;", 0),
        # What nobody can tell counts once.
        ("for (int i = 0; i < (int)x[0]; ++i) x[i] = 0;", 1),
        ("while (x[0] > 0) for (int i = 0; i < 3; ++i) x[i] = 0;", 3),
    ],
)  # fmt: skip
def test_the_iterations_of_one_thread_are_read_from_the_text(body: str, iterations: int) -> None:
    assert counted(body, {1: 1000, 2: 64}) == iterations


@pytest.mark.parametrize(
    "body", ["for (", "for (;;) {", "{{{{", "for (int i = 0; i < 1/0; ++i) ;", "if (", "x = (;"]
)
def test_a_text_that_is_no_program_is_read_without_harm(body: str) -> None:
    assert counted(body) <= 1


def library(iterations: str) -> Library:
    source = f"""
    __kernel void other(__global float* x) {{ for (int i = 0; i < 1000000; ++i) x[0] += i; }}
    __kernel void scan(__global float* x, int n) {{
      for (int i = 0; i < {iterations}; ++i) x[i] += 1.0f;
    }}"""
    launch = Launch("scan", (BufferArgument("x"), ScalarArgument("n", "int32")))
    program = OperatorProgram("cumsum", (Parameter("x", ("n",), "float32", "inout"),), (launch,))
    return Library(
        "opencl",
        (CodeModule("opencl-c", source.encode()),),
        {"scan": Kernel("scan", "scan", 0)},
        {"cumsum": program},
    )


def test_a_kernel_near_the_bound_is_named_with_its_count_and_the_bound() -> None:
    (warning,) = long_loops(library("60000"), BOUND)
    assert warning == LongLoop("kernel 'scan' of operator 'cumsum'", 60_000, BOUND)
    assert "60,000 iterations in one thread, close to the 65,535" in str(warning)
    (warning,) = long_loops(library("n"), BOUND, {"n": 70_000})
    assert "70,000 iterations in one thread, more than the 65,535" in str(warning)


def test_the_longest_input_of_the_plan_counts() -> None:
    reach = Reach({"cumsum": ({"n": 16}, {"n": 131_072})})
    assert [each.iterations for each in long_loops(library("n"), BOUND, reach=reach)] == [131_072]
    assert long_loops(library("n"), BOUND) == ()


def test_far_from_the_bound_or_without_one_nothing_is_said() -> None:
    assert long_loops(library("1000"), BOUND) == ()
    assert long_loops(library("10000000"), None) == ()


def test_a_compiled_kernel_is_read_like_a_written_one(tmp_path: Path) -> None:
    from tvm import relax

    shapes = [((4, 4096), "float32"), ((4096, 8), "float32")]
    operator = make_operator("product", shapes, relax.op.matmul)
    with Compiler() as compiler:
        compiled = compiler.compile(operator, Target("opencl"))
    assert long_loops(compiled, None) == ()
    (found,) = long_loops(compiled, 10)
    # Each thread sums a whole row, some of the terms in inner loops.
    assert 4096 // 64 <= found.iterations <= 4 * 4096
