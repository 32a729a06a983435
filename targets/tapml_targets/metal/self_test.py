"""The self-test's kernels in Metal; :mod:`tapml_targets.self_test.kernels` specifies them.

Every operand comes from a buffer: a compiler that knew it would compute with its own arithmetic,
not the device's.
"""

from __future__ import annotations

from typing import Final

from tapml_targets.library import CodeModule, Library
from tapml_targets.limits import Limits
from tapml_targets.metal.language import DIALECT
from tapml_targets.self_test.kernels import CORE, ROWS, SPELT, dtype_of, library_of

_PROLOGUE: Final = "#include <metal_stdlib>\nusing namespace metal;\n"
_INTEGERS: Final = """
kernel void tapml_loops(device int* out [[buffer(0)]], const device uint* steps [[buffer(1)]],
                        const device int* sizes [[buffer(2)]],
                        uint group [[threadgroup_position_in_grid]]) {
  uint state = 1u;
  int count = 0;
  if (group == 0u) {
    for (int i = 0; i < sizes[0]; ++i) {
      state = state * 1664525u + 1013904223u;
      count += (int)steps[state >> 26];
    }
  } else {
    for (int i = 0; i < sizes[1]; ++i)
      for (int j = 0; j < sizes[2]; ++j) {
        state = state * 1664525u + 1013904223u;
        count += (int)steps[state >> 26];
      }
  }
  out[group] = count;
}

kernel void tapml_block(device int* out [[buffer(0)]], device int* given [[buffer(1)]],
                        uint lane [[thread_position_in_threadgroup]],
                        uint threads [[threads_per_threadgroup]]) {
  given[lane] = int(lane) + 1;
  threadgroup_barrier(mem_flags::mem_device);
  out[lane] = given[threads - 1u - lane];
}

kernel void tapml_int64(device long* out [[buffer(0)]], const device long* a [[buffer(1)]],
                        const device long* b [[buffer(2)]],
                        uint i [[thread_position_in_grid]], uint n [[threads_per_grid]]) {
  const long x = a[i], y = b[i];
  const ulong s = (ulong)y & 63ul;
  out[i] = (long)((ulong)x + (ulong)y);
  out[n + i] = (long)((ulong)x * (ulong)y);
  out[2 * n + i] = (long)((ulong)x << s);
  out[3 * n + i] = x >> s;
  out[4 * n + i] = (long)((ulong)x >> s);
  out[5 * n + i] = x / y;
  out[6 * n + i] = x < y ? 1l : 0l;
}
"""
_FLOATS: Final = """
kernel void tapml_floats(device T* out [[buffer(0)]], const device T* a [[buffer(1)]],
                         const device T* b [[buffer(2)]], const device T* c [[buffer(3)]],
                         uint i [[thread_position_in_grid]], uint n [[threads_per_grid]]) {
  const T x = a[i], y = b[i], z = c[i];
ROWS
}
"""
_ROWS: Final = {
    **SPELT,
    # Stored to memory that every thread may see, a product is rounded before it is added to.
    "multiply_add_apart": "tapml_apart(x, y, z)",
    "is_nan": "isnan(x) ? T(1) : T(0)",
    "select": "select(z, x, y > T(0))",
    "lesser": "x < y ? x : y",
    "minimum": "fmin(x, y)",
}
_APART: Final = """
inline T tapml_apart(T a, T b, T c) {
  volatile T product = a * b;
  return product + c;
}
"""
_HALF: Final = """
kernel void tapml_convert(device half* out [[buffer(0)]], const device float* a [[buffer(1)]],
                          uint i [[thread_position_in_grid]]) {
  out[i] = (half)a[i];
}
"""
_TYPES: Final = {"float16": "half", "float32": "float"}


def self_test_library(part: str, limits: Limits = Limits()) -> Library:
    """The Library of a part of the self-test; see :data:`tapml_targets.self_test.kernels.PARTS`."""
    return library_of("metal", part, CodeModule(DIALECT, _source(part).encode()))


def _source(part: str) -> str:
    dtype = dtype_of(part)
    lines = [f"  out[{number} * n + i] = {_ROWS[row]};" for number, row in enumerate(ROWS[dtype])]
    source = f"{_PROLOGUE}#define T {_TYPES[dtype]}\n{_APART}"
    source += _FLOATS.replace("ROWS\n", "\n".join(lines) + "\n")
    return source + {CORE: _INTEGERS, "float16": _HALF}.get(part, "")
