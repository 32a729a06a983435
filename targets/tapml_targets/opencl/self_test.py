"""The self-test's kernels in OpenCL C; :mod:`tapml_targets.self_test.kernels` specifies them.

Every operand comes from a buffer: a compiler that knew it would compute with its own arithmetic,
not the device's.
"""

from __future__ import annotations

from typing import Final

from tapml_targets.library import CodeModule, Library
from tapml_targets.limits import Limits
from tapml_targets.self_test.kernels import CORE, ROWS, SPELT, dtype_of, library_of

_INTEGERS: Final = """
__kernel void tapml_loops(__global int* restrict out, __global const uint* restrict steps,
                          __global const int* restrict sizes) {
  uint state = 1u;
  int count = 0;
  if (get_group_id(0) == 0)
    for (int i = 0; i < sizes[0]; ++i) {
      state = state * 1664525u + 1013904223u;
      count += (int)steps[state >> 26];
    }
  else
    for (int i = 0; i < sizes[1]; ++i)
      for (int j = 0; j < sizes[2]; ++j) {
        state = state * 1664525u + 1013904223u;
        count += (int)steps[state >> 26];
      }
  out[get_group_id(0)] = count;
}

__kernel void tapml_block(__global int* restrict out, __global int* restrict shared) {
  const int i = (int)get_local_id(0);
  const int last = (int)get_local_size(0) - 1;
  shared[i] = i + 1;
  barrier(CLK_GLOBAL_MEM_FENCE);
  out[i] = shared[last - i];
}

__kernel void tapml_int64(__global long* restrict out, __global const long* restrict a,
                          __global const long* restrict b) {
  const size_t i = get_global_id(0), n = get_global_size(0);
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
# One kernel for the arithmetic of each dtype. T is the dtype, L a literal of it.
_FLOATS: Final = """
T tapml_apart(T a, T b, T c) {
#pragma OPENCL FP_CONTRACT OFF
  T product = a * b;
  return product + c;
}

__kernel void tapml_floats(__global T* restrict out, __global const T* restrict a,
                           __global const T* restrict b, __global const T* restrict c) {
  const size_t i = get_global_id(0), n = get_global_size(0);
  const T x = a[i], y = b[i], z = c[i];
ROWS
}
"""
_ROWS: Final = {
    **SPELT,
    "multiply_add_apart": "tapml_apart(x, y, z)",
    "is_nan": "x != x ? L(1) : L(0)",
    "select": "y > L(0) ? x : z",
    "lesser": "x < y ? x : y",
    "minimum": "fmin(x, y)",
}
_HALF: Final = """
__kernel void tapml_convert(__global half* restrict out, __global const float* restrict a) {
  const size_t i = get_global_id(0);
  out[i] = (half)a[i];
}
"""
_TYPES: Final = {"float16": "half", "float32": "float", "float64": "double"}
_EXTENSIONS: Final = {"float16": "cl_khr_fp16", "float64": "cl_khr_fp64"}


def self_test_library(part: str, limits: Limits = Limits()) -> Library:
    """The Library of a part of the self-test; see :data:`tapml_targets.self_test.kernels.PARTS`."""
    return library_of("opencl", part, CodeModule("opencl-c", _source(part).encode()))


def _source(part: str) -> str:
    dtype = dtype_of(part)
    lines = [f"  out[{number} * n + i] = {_ROWS[row]};" for number, row in enumerate(ROWS[dtype])]
    extension = _EXTENSIONS.get(dtype)
    enable = f"#pragma OPENCL EXTENSION {extension} : enable\n" if extension else ""
    start = f"{enable}#define T {_TYPES[dtype]}\n#define L(number) ((T)number)\n"
    source = start + _FLOATS.replace("ROWS\n", "\n".join(lines) + "\n")
    return source + {CORE: _INTEGERS, "float16": _HALF}.get(part, "")
