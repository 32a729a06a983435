"""The kernel that shows whether a Metal device works, and how fast it is."""

from __future__ import annotations

from typing import Final

from tapml_targets.library import CodeModule, Library
from tapml_targets.metal.language import DIALECT
from tapml_targets.probe_kernel import product_library, spelling

_TYPES: Final = {"float16": "half", "float32": "float"}
_SOURCE: Final = """\
#include <metal_stdlib>
using namespace metal;
struct tapml_probe_args_t { int columns; };
kernel void tapml_probe(device T* y [[buffer(0)]], const device T* a [[buffer(1)]],
                        const device T* x [[buffer(2)]],
                        constant tapml_probe_args_t& arg [[buffer(3)]],
                        uint row [[threadgroup_position_in_grid]],
                        uint lane [[thread_position_in_threadgroup]]) {
  threadgroup T sums[64];
  T part[8];
  T sum = T(0);
  for (int step = 0; step < arg.columns / 512; ++step) {
    const int first = step * 512 + int(lane) * 8;
    for (int i = 0; i < 8; ++i) part[i] = a[int(row) * arg.columns + first + i];
    for (int i = 0; i < 8; ++i) sum = sum + x[first + i] * part[i];
  }
  sums[lane] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint width = 32; width > 0; width = width / 2) {
    if (lane < width) sums[lane] = sums[lane] + sums[lane + width];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (lane == 0) y[row] = sums[0];
}
"""


def probe_library(dtype: str) -> Library:
    """The probe's Library; see :mod:`tapml_targets.probe_kernel`.

    Raises
    ------
    InputError
        If kernels cannot compute in `dtype`.
    """
    kind = spelling(_TYPES, dtype, "Metal")
    text = f"#define T {kind}\n{_SOURCE}"
    return product_library("metal", CodeModule(DIALECT, text.encode()), dtype)
