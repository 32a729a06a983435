"""The self-test's kernels in WGSL; :mod:`tapml_targets.self_test.kernels` specifies them.

 Every operand comes
from a buffer: a compiler that knew it would compute with its own arithmetic, not the device's. WGSL
has neither 64-bit integers nor a way to forbid contraction: the first kernel is left out, and the
second asks with a product that passes through integers.
"""

from __future__ import annotations

from typing import Final

from tapml_targets.library import CodeModule, Library
from tapml_targets.limits import Limits
from tapml_targets.self_test.kernels import CORE, ROWS, SPELT, block_threads, dtype_of, library_of

_LOOPS: Final = """\
@group(0) @binding(0) var<storage, read_write> sums : array<i32>;
@group(0) @binding(1) var<storage, read> steps : array<u32>;
@group(0) @binding(2) var<storage, read> sizes : array<i32>;
@compute @workgroup_size(1, 1, 1)
fn tapml_loops(@builtin(workgroup_id) block : vec3<u32>) {
  var state = 1u;
  var count = 0;
  if (block.x == 0u) {
    for (var i = 0; i < sizes[0]; i++) {
      state = state * 1664525u + 1013904223u;
      count += i32(steps[state >> 26u]);
    }
  } else {
    for (var i = 0; i < sizes[1]; i++) {
      for (var j = 0; j < sizes[2]; j++) {
        state = state * 1664525u + 1013904223u;
        count += i32(steps[state >> 26u]);
      }
    }
  }
  sums[block.x] = count;
}
"""
_BLOCK: Final = """\
@group(0) @binding(0) var<storage, read_write> found : array<i32>;
@group(0) @binding(1) var<storage, read_write> between : array<i32>;
@compute @workgroup_size(THREADS, 1, 1)
fn tapml_block(@builtin(local_invocation_id) lane : vec3<u32>) {
  between[lane.x] = i32(lane.x) + 1;
  storageBarrier();
  found[lane.x] = between[THREADS - 1u - lane.x];
}
"""
# The arithmetic of a dtype T. What is or-ed to the product is zero, which no compiler knows.
_FLOATS: Final = """\
alias T = TYPE;
@group(0) @binding(0) var<storage, read_write> found : array<T>;
@group(0) @binding(1) var<storage, read> a : array<T>;
@group(0) @binding(2) var<storage, read> b : array<T>;
@group(0) @binding(3) var<storage, read> c : array<T>;
fn apart(x : T, y : T, z : T, nothing : u32) -> T {
  let product = x * y;
  return APART + z;
}
@compute @workgroup_size(1, 1, 1)
fn tapml_floats(@builtin(workgroup_id) block : vec3<u32>,
                @builtin(num_workgroups) grid : vec3<u32>) {
  let i = block.x;
  let n = grid.x;
  let x = a[i];
  let y = b[i];
  let z = c[i];
ROWS
}
"""
_APART: Final = {
    "float32": "bitcast<f32>(bitcast<u32>(product) | nothing)",
    "float16": "f16(unpack2x16float(pack2x16float(vec2<f32>(f32(product), 0.0)) | nothing).x)",
}
_ROWS: Final = {
    **SPELT,
    "multiply_add_apart": "apart(x, y, z, i >> 31u)",
    "is_nan": "select(T(0), T(1), x != x)",
    "select": "select(z, x, y > T(0))",
    "lesser": "select(y, x, x < y)",
    "minimum": "min(x, y)",
}
_CONVERT: Final = """\
@group(0) @binding(0) var<storage, read_write> found : array<f16>;
@group(0) @binding(1) var<storage, read> a : array<f32>;
@compute @workgroup_size(1, 1, 1)
fn tapml_convert(@builtin(workgroup_id) block : vec3<u32>) {
  found[block.x] = f16(a[block.x]);
}
"""
_TYPES: Final = {"float16": "f16", "float32": "f32"}


def self_test_library(part: str, limits: Limits = Limits()) -> Library:
    """The Library of a part of the self-test; see :data:`tapml_targets.self_test.kernels.PARTS`.

    `limits` are the device's: a WGSL text holds its workgroup size, and the largest is tried.
    """
    texts = {"floats": _floats(dtype_of(part))}
    if part == CORE:
        threads = f"{block_threads(limits)}u"
        texts |= {"loops": _LOOPS, "block": _BLOCK.replace("THREADS", threads)}
    else:
        texts["convert"] = _CONVERT
    modules = {name: CodeModule("wgsl", text.encode()) for name, text in texts.items()}
    return library_of("webgpu", part, modules)


def _floats(dtype: str) -> str:
    lines = [
        f"  found[{number}u * n + i] = {_ROWS[row]};" for number, row in enumerate(ROWS[dtype])
    ]
    return (
        _FLOATS.replace("TYPE", _TYPES[dtype])
        .replace("APART", _APART[dtype])
        .replace("ROWS", "\n".join(lines))
    )
