"""The kernel that shows whether a WebGPU device works, and how fast it is."""

from __future__ import annotations

from typing import Final

from tapml_targets.library import CodeModule, Library
from tapml_targets.probe_kernel import product_library, spelling

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
    """The probe's Library; see :mod:`tapml_targets.probe_kernel`.

    Raises
    ------
    InputError
        If kernels cannot compute in `dtype`.
    """
    text = f"alias T = {spelling(_TYPES, dtype, 'WGSL')};\n{_SOURCE}"
    return product_library("webgpu", CodeModule("wgsl", text.encode()), dtype)
