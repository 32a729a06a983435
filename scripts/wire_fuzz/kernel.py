"""The operator both sides of the fuzzer run: ``add_one(x, y)`` over float32."""

from __future__ import annotations

from functools import cache

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
from tapml_targets.library_format import pack

_SOURCE = b"""
__kernel void add_one(__global float* y, __global const float* x, long n) {
  size_t i = get_global_id(0);
  if (i < n) y[i] = x[i] + 1.0f;
}
"""


@cache
def packed_library() -> bytes:
    """The Library as it travels."""
    x, y = Parameter("x", ("n",), "float32", "input"), Parameter("y", ("n",), "float32", "output")
    launch = Launch(
        "add_one",
        (BufferArgument("y"), BufferArgument("x"), ScalarArgument("n", "int64")),
        grid=(("floordiv", ("add", "n", 63), 64), 1, 1),
        block=(64, 1, 1),
    )
    return pack(
        Library(
            target="opencl",
            modules=(CodeModule("opencl-c", _SOURCE),),
            kernels={"add_one": Kernel("add_one", "add_one", 0, threads_per_block=64)},
            operators={"add_one": OperatorProgram("add_one", (x, y), (launch,))},
        )
    )
