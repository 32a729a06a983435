"""Two kernels as TVM writes them, small enough to count every place in."""

from __future__ import annotations

from typing import Final

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

# out[i] = silu(x[i]) - w[i, i mod 8], with a declaration that nothing reads.
GATE: Final = """\
// Function: gate_kernel
__kernel void gate_kernel(__global float* restrict x_ptr, __global float* restrict w_ptr, \
__global float* restrict out_ptr, long S);
__kernel void gate_kernel(__global float* restrict x_ptr, __global float* restrict w_ptr, \
__global float* restrict out_ptr, long S) {
  long cse_v1 = (((convert_long(get_group_id(0))) * (long)64) + (convert_long(get_local_id(0))));
  if ((((convert_long(get_group_id(0))) * (long)64) + (convert_long(get_local_id(0)))) < S) {
    out_ptr[(((convert_long(get_group_id(0))) * (long)64) + (convert_long(get_local_id(0))))] = \
((x_ptr[(convert_long(get_local_id(0)))] * (1.00000000e+00f / (1.00000000e+00f + \
exp((0.00000000e+00f - x_ptr[(convert_long(get_local_id(0)))]))))) - \
w_ptr[(((convert_long(get_group_id(0))) * (long)64) + (convert_long(get_local_id(0))))]);
  }
}
"""

# The largest of eight values per group, then the sum of exponentials below it.
REDUCE: Final = """\
__kernel void reduce_kernel(__global float* restrict x_ptr, __global float* restrict out_ptr) {
  float sum_ptr[1];
  __local float red_ptr[8];
  __local float top_ptr[1];
  ((volatile __local float*)red_ptr)[(convert_int(get_local_id(0)))] = \
x_ptr[(((convert_int(get_group_id(0))) * 8) + (convert_int(get_local_id(0))))];
  barrier(CLK_LOCAL_MEM_FENCE);
  if ((convert_int(get_local_id(0))) < 4) {
    ((volatile __local float*)red_ptr)[(convert_int(get_local_id(0)))] = \
max((float)((volatile __local float*)red_ptr)[(convert_int(get_local_id(0)))], \
(float)((volatile __local float*)red_ptr)[((convert_int(get_local_id(0))) + 4)]);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if ((convert_int(get_local_id(0))) == 0) {
    top_ptr[0] = ((volatile __local float*)red_ptr)[0];
  }
  sum_ptr[0] = 0.00000000e+00f;
  for (int k = 0; k < 8; ++k) {
    sum_ptr[0] = (sum_ptr[0] + exp((x_ptr[(((convert_int(get_group_id(0))) * 8) + k)] - \
top_ptr[0])));
  }
  if ((convert_int(get_local_id(0))) == 0) {
    out_ptr[(convert_int(get_group_id(0)))] = sum_ptr[0];
  } else {
    out_ptr[0] = pow(sum_ptr[0], 2.00000000e+00f);
  }
}
"""


def library(source: str, name: str) -> Library:
    """A Library of one kernel that takes two inputs and a length."""
    tensors = ("x", "w", "out")
    buffers = tuple(BufferArgument(tensor) for tensor in tensors)
    blocks = ("floordiv", ("add", "S", 63), 64)
    launch = Launch(
        name, (*buffers, ScalarArgument("S", "int64")), grid=(blocks, 2, 1), block=(64, 1, 1)
    )
    parameters = tuple(
        Parameter(tensor, ("S",), "float32", "output" if tensor == "out" else "input")
        for tensor in tensors
    )
    return Library(
        target="opencl",
        modules=(CodeModule("opencl-c", source.encode()),),
        kernels={name: Kernel(name, name, 0)},
        operators={name: OperatorProgram(name, parameters, (launch,))},
    )
