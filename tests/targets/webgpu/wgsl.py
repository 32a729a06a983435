"""WGSL written by hand, in the form that Libraries hold, and Libraries made of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tapml_targets.driver import Driver
from tapml_targets.library import (
    BufferArgument,
    CodeModule,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    Parameter,
    ScalarArgument,
    Workspace,
)
from tapml_targets.webgpu.programs import LoadedKernel

ADD = """\
// o = a + amount, over n elements.
struct Arguments { n: i32, amount: f32, packGridDimX: u32 }
@group(0) @binding(0) var<storage, read_write> o : array<f32>;
@group(0) @binding(1) var<storage, read> a : array<f32>;
@group(0) @binding(2) var<uniform> arguments : Arguments;
@compute @workgroup_size(64, 1, 1)
fn add(@builtin(workgroup_id) block : vec3<u32>, @builtin(num_workgroups) grid : vec3<u32>,
       @builtin(local_invocation_id) lane : vec3<u32>) {
  if (block.z * grid.x + block.x > arguments.packGridDimX) { return; }
  let i = i32(block.z * grid.x + block.x) * 64 + i32(lane.x);
  if (i < arguments.n) { o[i] = a[i] + arguments.amount; }
}
"""
# No scalars and no folding; EXTRA is more to add, SIZE the workgroup, BEFORE what is declared.
COPY = """\
@group(0) @binding(0) var<storage, read_write> o : array<u32>;
@group(0) @binding(1) var<storage, read> a : array<u32>;
BEFORE
@compute @workgroup_size(SIZE)
fn copy(@builtin(global_invocation_id) id : vec3<u32>) {
  o[id.x] = a[id.x]EXTRA;
}
"""
# As many steps as a device allows without ending the loop, and each needs the one before.
SLOW = """\
@group(0) @binding(0) var<storage, read_write> o : array<u32>;
@compute @workgroup_size(64)
fn slow(@builtin(global_invocation_id) id : vec3<u32>) {
  var state = id.x;
  for (var i = 0u; i < 60000u; i++) { state = state * 1664525u + 1013904223u; }
  o[id.x] = state;
}
"""


def slow_result(count: int) -> NDArray[np.uint32]:
    """What :data:`SLOW` writes with `count` threads."""
    factor, summand = 1, 0
    for _ in range(60000):
        factor, summand = factor * 1664525 % 2**32, (summand * 1664525 + 1013904223) % 2**32
    numbers = np.arange(count, dtype=np.uint64)
    return (numbers * np.uint64(factor) + np.uint64(summand)).astype(np.uint32)


def copy(*, before: str = "", extra: str = "", size: str = "64, 1, 1") -> str:
    """:data:`COPY` with its parts filled in."""
    return COPY.replace("BEFORE", before).replace("EXTRA", extra).replace("SIZE", size)


def load(driver: Driver, source: str, symbol: str, **needs: object) -> LoadedKernel:
    """Build the one kernel of `source`; `needs` are fields of :class:`Kernel`."""
    kernel = Kernel(symbol, symbol, 0, **needs)  # type: ignore[arg-type]
    loaded: LoadedKernel = driver.load(CodeModule("wgsl", source.encode()), [kernel])[symbol]
    return loaded


def overrun_library(where: int) -> Library:
    """``overrun(a, o)``: a workspace ``w`` and `o` get `a`, and 13 at the index `where`."""
    stray = ADD.replace(
        "  if (i <", "  if (i == 0) { o[arguments.stray] = 13.0; }\n  if (i <"
    ).replace("amount: f32", "amount: f32, stray: i32")
    launches = [
        Launch(
            "add",
            (
                BufferArgument(target),
                BufferArgument("a"),
                ScalarArgument("n", "int32"),
                ScalarArgument(0, "float32"),
                ScalarArgument(where, "int32"),
            ),
            (("floordiv", ("add", "n", 63), 64), 1, 1),
            (64, 1, 1),
        )
        for target in ("w", "o")
    ]
    parameters = (
        Parameter("a", ("n",), "float32", "input"),
        Parameter("o", ("n",), "float32", "output"),
    )
    operator = OperatorProgram(
        "overrun", parameters, tuple(launches), (Workspace("w", ("mul", "n", 4)),)
    )
    return Library(
        "webgpu",
        (CodeModule("wgsl", stray.encode()),),
        {"add": Kernel("add", "add", 0, 64)},
        {"overrun": operator},
    )


def add_library() -> Library:
    """An operator ``add_two(a, o)`` in two launches, the second in place of the first's output."""
    blocks = (("floordiv", ("add", "n", 63), 64), 1, 1)
    launches = [
        Launch(
            "add",
            (
                BufferArgument(target),
                BufferArgument(source),
                ScalarArgument("n", "int32"),
                ScalarArgument(1, "float32"),
            ),
            blocks,
            (64, 1, 1),
        )
        for target, source in (("between", "a"), ("o", "between"))
    ]
    parameters = (
        Parameter("a", ("n",), "float32", "input"),
        Parameter("between", ("n",), "float32", "output"),
        Parameter("o", ("n",), "float32", "output"),
    )
    operator = OperatorProgram("add_two", parameters, tuple(launches))
    return Library(
        "webgpu",
        (CodeModule("wgsl", ADD.encode()),),
        {"add": Kernel("add", "add", 0, 64)},
        {"add_two": operator},
    )
