"""The kernel that shows whether an OpenCL device works, and how fast it is.

A matrix times a vector, as the schedules for GPUs write it: a block per row, threads that stride
over the columns, a tree of sums in local memory behind barriers.
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
_TYPES: Final = {"float16": "half", "float32": "float", "float64": "double"}
_EXTENSIONS: Final = {"float16": "cl_khr_fp16", "float64": "cl_khr_fp64"}
_SOURCE: Final = """
__kernel void tapml_probe(__global T* restrict y, __global const T* restrict a,
                          __global const T* restrict x, int columns) {
  __local T sums[THREADS];
  const int row = get_group_id(0);
  const int lane = get_local_id(0);
  T sum = 0;
  for (int column = lane; column < columns; column += THREADS)
    sum += a[(long)row * columns + column] * x[column];
  sums[lane] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int width = THREADS / 2; width > 0; width /= 2) {
    if (lane < width) sums[lane] += sums[lane + width];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (lane == 0) y[row] = sums[0];
}
"""


def probe_library(dtype: str) -> Library:
    """A Library with the operator ``probe``: y[rows] = a[rows, columns] x[columns].

    Raises
    ------
    InputError
        If kernels cannot compute in `dtype`.
    """
    if dtype not in _TYPES:
        raise InputError(f"devices are not ranked for {dtype}; choose from {', '.join(_TYPES)}")
    prologue = f"#define T {_TYPES[dtype]}\n#define THREADS {THREADS}\n"
    extension = _EXTENSIONS.get(dtype)
    if extension:
        prologue = f"#pragma OPENCL EXTENSION {extension} : enable\n{prologue}"
    features = (dtype,) if extension else ()
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
    return Library(
        "opencl",
        (CodeModule("opencl-c", (prologue + _SOURCE).encode()),),
        {"probe": Kernel("probe", "tapml_probe", 0, THREADS, features=features)},
        {"probe": operator},
    )
