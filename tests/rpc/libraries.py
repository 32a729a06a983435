"""Small OpenCL Libraries: one that adds, one that never ends, one that writes to nowhere."""

from __future__ import annotations

import numpy as np

from tapml_rpc.client import RemoteTensor, Session
from tapml_targets.library import (
    BufferArgument,
    CodeModule,
    EntryCall,
    EntryProgram,
    EntryStorage,
    EntryValue,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    Parameter,
    ScalarArgument,
)

ADD_ONE = b"""
__kernel void add_one(__global float* y, __global const float* x, long n) {
  size_t i = get_global_id(0);
  if (i < n) y[i] = x[i] + 1.0f;
}
"""
# Some milliseconds of work for every launch.
BUSY = b"""
__kernel void add_one(__global float* y, __global const float* x, long n) {
  size_t i = get_global_id(0);
  float sum = x[i];
  for (int step = 0; step < 40000; ++step) sum = sum * 0.999f + 0.001f;
  y[i] = sum + 1.0f;
}
"""
# The loop's end depends on memory, so that no compiler can leave it out.
NEVER_ENDS = b"""
__kernel void add_one(__global volatile float* y, __global const float* x, long n) {
  while (y[0] != 12345.0f) y[0] = x[0];
}
"""
# One item does: two of a driver's threads that crash at a time cut each other's last words short.
# And it does so when the worker waits for it: the stack of a thread that runs on cannot be told.
WRITES_TO_NOWHERE = b"""
__kernel void add_one(__global float* y, __global const float* x, long n) {
  volatile __global float* nowhere = (volatile __global float*)(n - n + 8);
  if (get_global_id(0) != 0) return;
  float sum = x[0];
  for (int step = 0; step < 20000000; ++step) sum = sum * 0.999f + 0.001f;
  nowhere[0] = sum;
}
"""


def add_one_library(source: bytes = ADD_ONE, comment: str = "") -> Library:
    """An operator ``add_one(x, y)`` over float32, and an entry ``add_two`` that runs it twice."""
    x, y = Parameter("x", ("n",), "float32", "input"), Parameter("y", ("n",), "float32", "output")
    operator = OperatorProgram(
        "add_one",
        (x, y),
        (
            Launch(
                "add_one",
                (BufferArgument("y"), BufferArgument("x"), ScalarArgument("n", "int64")),
                grid=(("floordiv", ("add", "n", 63), 64), 1, 1),
                block=(64, 1, 1),
            ),
        ),
    )
    entry = EntryProgram(
        "add_two",
        (x, y),
        storages=(EntryStorage("between", ("mul", "n", 4)),),
        values=(
            EntryValue("x", "x", 0, ("n",), "float32"),
            EntryValue("once", "between", 0, ("n",), "float32"),
            EntryValue("y", "y", 0, ("n",), "float32"),
        ),
        calls=(EntryCall("add_one", ("x", "once")), EntryCall("add_one", ("once", "y"))),
    )
    return Library(
        target="opencl",
        modules=(CodeModule("opencl-c", source),),
        kernels={"add_one": Kernel("add_one", "add_one", 0, threads_per_block=64)},
        operators={"add_one": operator},
        entries={"add_two": entry},
        metadata={"comment": comment},
    )


def launch(session: Session, source: bytes, times: int) -> None:
    """Send so many launches of ``add_one`` in a message and do not wait."""
    library = session.upload(add_one_library(source))
    x, y = (session.allocate(256) for _ in range(2))
    session.write(x, np.ones(64, np.float32))
    tensors = [RemoteTensor(each, 0, (64,), "float32") for each in (x, y)]
    for _ in range(times):
        session._add_call(library, "add_one", tensors, None, {}, None)
    session._queue.flush()
