"""The kernel that shows whether an OpenCL device works, and how fast it is.

A matrix times a vector, as TVM's schedule for GPUs writes it: a block per row, threads that take
eight columns at a time into private memory, a tree of sums in volatile local memory behind
barriers. Drivers for processors differ most there: one vectorises it, another runs it seven times
slower, and a plainer kernel does not show it.
"""

from __future__ import annotations

from typing import Final

from tapml_targets.library import CodeModule, Library
from tapml_targets.probe_kernel import THREADS, product_library, spelling

_EACH: Final = 8
_TYPES: Final = {"float16": "half", "float32": "float", "float64": "double"}
_EXTENSIONS: Final = {"float16": "cl_khr_fp16", "float64": "cl_khr_fp64"}
_SOURCE: Final = """
__kernel void tapml_probe(__global T* restrict y, __global const T* restrict a,
                          __global const T* restrict x, int columns) {
  T sum[1];
  T part[EACH];
  __local T sums[THREADS];
  sum[0] = 0;
  for (int step = 0; step < columns / (THREADS * EACH); ++step) {
    const int first = step * THREADS * EACH + convert_int(get_local_id(0)) * EACH;
    for (int i = 0; i < EACH; ++i)
      part[i] = a[convert_int(get_group_id(0)) * columns + first + i];
    for (int i = 0; i < EACH; ++i)
      sum[0] = sum[0] + x[first + i] * part[i];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  ((volatile __local T*)sums)[convert_int(get_local_id(0))] = sum[0];
  barrier(CLK_LOCAL_MEM_FENCE);
TREE
  if (convert_int(get_local_id(0)) == 0)
    y[convert_int(get_group_id(0))] = ((volatile __local T*)sums)[0];
}
"""
_LEVEL: Final = """\
  if (convert_int(get_local_id(0)) < {width})
    ((volatile __local T*)sums)[convert_int(get_local_id(0))] =
        ((volatile __local T*)sums)[convert_int(get_local_id(0))] +
        ((volatile __local T*)sums)[convert_int(get_local_id(0)) + {width}];
  barrier(CLK_LOCAL_MEM_FENCE);
"""


def probe_library(dtype: str) -> Library:
    """The probe's Library; see :mod:`tapml_targets.probe_kernel`.

    Raises
    ------
    InputError
        If kernels cannot compute in `dtype`.
    """
    kind = spelling(_TYPES, dtype, "OpenCL C")
    prologue = f"#define T {kind}\n#define THREADS {THREADS}\n#define EACH {_EACH}\n"
    widths = [THREADS >> level for level in range(1, THREADS.bit_length())]
    source = _SOURCE.replace("TREE\n", "".join(_LEVEL.format(width=width) for width in widths))
    if extension := _EXTENSIONS.get(dtype):
        prologue = f"#pragma OPENCL EXTENSION {extension} : enable\n{prologue}"
    return product_library("opencl", CodeModule("opencl-c", (prologue + source).encode()), dtype)
