"""The kernel that shows whether a WebGPU device works, and how fast it is.

A matrix times a vector, as TVM's schedule for GPUs writes it: a workgroup per row, threads that
take eight columns at a time, a tree of sums in workgroup memory behind barriers.
"""

from __future__ import annotations

from typing import Final

from tapml_targets.errors import InputError
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

THREADS: Final = 64
_TYPES: Final = {"float16": "f16", "float32": "f32"}
_SOURCE: Final = """\
struct Arguments { columns: i32, packGridDimX: u32 }
@group(0) @binding(0) var<storage, read_write> y : array<T>;
@group(0) @binding(1) var<storage, read> a : array<T>;
@group(0) @binding(2) var<storage, read> x : array<T>;
@group(0) @binding(3) var<uniform> arguments : Arguments;
var<workgroup> sums : array<T, 64>;
@compute @workgroup_size(64, 1, 1)
fn tapml_probe(@builtin(workgroup_id) block : vec3<u32>,
               @builtin(num_workgroups) grid : vec3<u32>,
               @builtin(local_invocation_id) lane : vec3<u32>) {
  if (block.z * grid.x + block.x > arguments.packGridDimX) { return; }
  let row = i32(block.z * grid.x + block.x);
  let thread = i32(lane.x);
  var sum : T = T(0);
  var part : array<T, 8>;
  for (var step = 0; step < arguments.columns / 512; step++) {
    let first = step * 512 + thread * 8;
    for (var i = 0; i < 8; i++) { part[i] = a[row * arguments.columns + first + i]; }
    for (var i = 0; i < 8; i++) { sum = sum + x[first + i] * part[i]; }
  }
  sums[thread] = sum;
  workgroupBarrier();
  for (var width = 32; width > 0; width = width / 2) {
    if (thread < width) { sums[thread] = sums[thread] + sums[thread + width]; }
    workgroupBarrier();
  }
  if (thread == 0) { y[row] = sums[0]; }
}
"""


def probe_library(dtype: str) -> Library:
    """A Library with the operator ``probe``: y[rows] = a[rows, columns] x[columns].

    `columns` is a multiple of 512.

    Raises
    ------
    InputError
        If kernels cannot compute in `dtype`.
    """
    if dtype not in _TYPES:
        raise InputError(f"WGSL has no {dtype}; choose from {', '.join(_TYPES)}")
    features = (dtype,) if dtype == "float16" else ()
    operator = OperatorProgram(
        "probe",
        (
            Parameter("a", ("rows", "columns"), dtype, "input"),
            Parameter("x", ("columns",), dtype, "input"),
            Parameter("y", ("rows",), dtype, "output"),
        ),
        (
            Launch(
                "probe",
                (
                    BufferArgument("y"),
                    BufferArgument("a"),
                    BufferArgument("x"),
                    ScalarArgument("columns", "int32"),
                ),
                ("rows", 1, 1),
                (THREADS, 1, 1),
            ),
        ),
    )
    source = f"alias T = {_TYPES[dtype]};\n{_SOURCE}"
    return Library(
        "webgpu",
        (CodeModule("wgsl", source.encode()),),
        {"probe": Kernel("probe", "tapml_probe", 0, THREADS, 0, features)},
        {"probe": operator},
    )
