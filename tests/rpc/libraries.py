"""Small OpenCL Libraries: one that adds, one that never ends, one that writes to nowhere."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace

from tapml_rpc.client import CallResult, RemoteTensor, Session
from tapml_targets.conformance_kernels import THREADS, KernelText, kernel_table
from tapml_targets.library import CodeModule, Kernel, Library
from tests.targets.libraries import launch, library

ADD_ONE = b"""
__kernel void add_one(__global float* y, __global const float* x, int n) {
  int i = get_global_id(0);
  if (i < n) y[i] = x[i] + 1.0f;
}
"""
# Some milliseconds of work for every launch.
BUSY = b"""
__kernel void add_one(__global float* y, __global const float* x, int n) {
  int i = get_global_id(0);
  float sum = x[i];
  for (int step = 0; step < 40000; ++step) sum = sum * 0.999f + 0.001f;
  y[i] = sum + 1.0f;
}
"""
# The loop's end depends on memory, so that no compiler can leave it out.
NEVER_ENDS = b"""
__kernel void add_one(__global volatile float* y, __global const float* x, int n) {
  while (y[0] != 12345.0f) y[0] = x[0];
}
"""
# One item does: two of a driver's threads that crash at a time cut each other's last words short.
# And it does so when the worker waits for it: the stack of a thread that runs on cannot be told.
WRITES_TO_NOWHERE = b"""
__kernel void add_one(__global float* y, __global const float* x, int n) {
  volatile __global float* nowhere = (volatile __global float*)((size_t)(n - n + 8));
  if (get_global_id(0) != 0) return;
  float sum = x[0];
  for (int step = 0; step < 20000000; ++step) sum = sum * 0.999f + 0.001f;
  nowhere[0] = sum;
}
"""


def add_one_library(source: bytes = ADD_ONE, comment: str = "") -> Library:
    """An operator ``add_one(a, o)`` over float32, and an entry ``add_two`` that runs it twice."""
    made = library("opencl")
    statements = (launch(kernel_table("opencl"), KernelText("add_one", ""), "o", "a"),)
    chain = made.entries["chain"]
    calls = tuple(replace(call, operator="add_one") for call in chain.calls)
    return Library(
        target="opencl",
        modules=(CodeModule("opencl-c", source),),
        kernels={"add_one": Kernel("add_one", "add_one", 0, THREADS)},
        operators={"add_one": replace(made.operators["add_one"], statements=statements)},
        entries={"add_two": replace(chain, name="add_two", calls=calls)},
        metadata={"comment": comment},
    )


def launch_often(session: Session, source: bytes, times: int) -> None:
    """Send so many launches of ``add_one`` in a message and do not wait."""
    library = session.upload(add_one_library(source))
    x, y = (session.allocate(256) for _ in range(2))
    session.write(x, np.ones(64, np.float32))
    tensors = [RemoteTensor(each, 0, (64,), "float32") for each in (x, y)]
    for _ in range(times):
        session._add_call(library, "add_one", tensors, None, {}, None)
    session._queue.flush()


def call_and_report(session: Session, *call: Any, **options: Any) -> CallResult:
    """What a call of its own in a batch of its own reported."""
    with session.batch() as batch:
        pending = batch.call(*call, **({"timed": True} | options))
    return pending.result()
