"""Loops of WGSL kernels are counted as those of OpenCL C are: lavapipe ends long ones."""

from __future__ import annotations

import pytest
from tvm import relax

from tapml.compiler.loop_counts import loop_iterations
from tapml.compiler.preflight import long_loops
from tapml.compiler.wgsl_loops import like_c
from tapml_targets.target import Target
from tests.compiler.operators import from_relax
from tests.compiler.webgpu_operators import compiled

BOUND = 65_535
MODULE = """\
// for (var i : i32 = 0i; i < 99i; i++) in a comment
@group(0) @binding(0) var<storage, read> x_ptr : array<f32>;
@group(0) @binding(1) var<storage, read_write> y_ptr : array<f32>;
struct PODArgs { n: i32, m: i32, packGridDimX: u32 }
@group(0) @binding(2) var<uniform> podArgs : PODArgs;
fn helper(i : i32) -> i32 { return i; }
@compute @workgroup_size(64, 1, 1)
fn k(@builtin(workgroup_id) blockIdx : vec3<u32>) { BODY }
"""


@pytest.mark.parametrize(
    ("body", "iterations"),
    [
        ("y_ptr[0i] = 1.0f;", 0),
        ("for (var i : i32 = 0i; i < 100i; i++) { y_ptr[i] = 0.0f; }", 100),
        ("for (var i : i32 = 0i; i < podArgs.n; i++) { y_ptr[i] = 0.0f; }", 1000),
        ("for (var i : u32 = 0u; i < u32(podArgs.m + 15i) / 16u; i++) { y_ptr[i] = 0.0f; }", 4),
        ("for (var i = 0u; i < 6u; i++) { for (var j = 0u; j < 2u; j++) { } }", 6 * 3),
        ("for (var i : i32 = 0i; i < helper(3i); i++) { }", 1),
    ],
)
def test_the_iterations_are_those_of_the_text(body: str, iterations: int) -> None:
    source = like_c(MODULE.replace("BODY", body), "k")
    assert loop_iterations(source, "k", {2: 1000, 3: 64}) == iterations


def test_a_kernel_that_is_not_there_has_no_loops() -> None:
    assert like_c(MODULE, "other") == MODULE
    assert loop_iterations(like_c("{{{", "k"), "k", {}) == 0


@pytest.mark.parametrize(("rows", "named"), [(1000, False), (70_000, True)])
def test_a_kernel_that_lavapipe_would_cut_short_is_named(rows: int, named: bool) -> None:
    of = from_relax("total", (rows, 3), lambda x: relax.op.sum(x, axis=0))
    alone = Target("webgpu", (("schedule", "one-thread"),))
    assert bool(long_loops(compiled(of, alone), BOUND)) == named
    # Spread over threads it does not come near.
    assert long_loops(compiled(of), BOUND) == ()
