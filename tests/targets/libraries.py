"""Small Libraries for OpenCL, written by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tapml_targets.driver import Driver, TensorUse
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
    Workspace,
)

SOURCE = b"""
__kernel void add(__global float* o, __global const float* a, float amount, long n) {
  long i = get_global_id(0);
  if (i < n) o[i] = a[i] + amount;
}
__kernel void scale(__global float* o, __global const float* a, long n) {
  long i = get_global_id(0);
  if (i < n) o[i] = 2.0f * a[i];
}
__kernel void overrun(__global float* w, __global const float* a, long n, int where) {
  long i = get_global_id(0);
  if (i < n) w[i] = a[i];
  if (i == n - 1) w[where] = 13.0f;
}
__kernel void peek(__global float* o, __global const float* w, long n) {
  long i = get_global_id(0);
  if (i < n) o[i] = w[i];
}
"""
BLOCKS = (("floordiv", ("add", "n", 63), 64), 1, 1)
BLOCK = (64, 1, 1)
VECTORS = (
    Parameter("a", ("n",), "float32", "input"),
    Parameter("o", ("n",), "float32", "output"),
)
N = ScalarArgument("n", "int64")


def add_one() -> OperatorProgram:
    """o = a + 1."""
    arguments = (BufferArgument("o"), BufferArgument("a"), ScalarArgument(1, "float32"), N)
    return OperatorProgram("add_one", VECTORS, (Launch("add", arguments, BLOCKS, BLOCK),))


def double_in_workspace() -> OperatorProgram:
    """o = 2 a + 1, with 2 a in a workspace."""
    return OperatorProgram(
        "double_add",
        VECTORS,
        (
            Launch("scale", (BufferArgument("w"), BufferArgument("a"), N), BLOCKS, BLOCK),
            Launch(
                "add",
                (BufferArgument("o"), BufferArgument("w"), ScalarArgument(1, "float32"), N),
                BLOCKS,
                BLOCK,
            ),
        ),
        (Workspace("w", ("mul", "n", 4)),),
    )


def overrun() -> OperatorProgram:
    """Copy `a` into a workspace and write one float at element `where` of it."""
    return OperatorProgram(
        "overrun",
        VECTORS,
        (
            Launch(
                "overrun",
                (BufferArgument("w"), BufferArgument("a"), N, ScalarArgument("where", "int32")),
                BLOCKS,
                BLOCK,
            ),
            Launch("peek", (BufferArgument("o"), BufferArgument("w"), N), BLOCKS, BLOCK),
        ),
        (Workspace("w", ("mul", "n", 4)),),
        ("where",),
    )


def peek() -> OperatorProgram:
    """Return what an unwritten workspace holds."""
    return OperatorProgram(
        "peek",
        VECTORS,
        (Launch("peek", (BufferArgument("o"), BufferArgument("w"), N), BLOCKS, BLOCK),),
        (Workspace("w", ("mul", "n", 4)),),
    )


def add_twice_entry() -> EntryProgram:
    """o = (2 a + 1) + 1 over an intermediate."""
    return EntryProgram(
        "chain",
        VECTORS,
        (EntryStorage("t", ("mul", "n", 4)),),
        (
            EntryValue("in", "a", 0, ("n",), "float32"),
            EntryValue("middle", "t", 0, ("n",), "float32"),
            EntryValue("out", "o", 0, ("n",), "float32"),
        ),
        (EntryCall("double_add", ("in", "middle")), EntryCall("add_one", ("middle", "out"))),
    )


def library() -> Library:
    """All of the above."""
    operators = (add_one(), double_in_workspace(), overrun(), peek())
    return Library(
        "opencl",
        (CodeModule("opencl-c", SOURCE),),
        {name: Kernel(name, name, 0, 64) for name in ("add", "scale", "overrun", "peek")},
        {operator.name: operator for operator in operators},
        {"chain": add_twice_entry()},
        {"model": "by hand"},
    )


@dataclass
class Tensors:
    """Arrays on a device, as a call takes them."""

    driver: Driver

    def put(self, array: npt.NDArray[Any], before: int = 0, after: int = 0) -> TensorUse:
        """Copy `array` into a buffer with `before` and `after` spare bytes around it."""
        buffer = self.driver.allocate(before + array.nbytes + after)
        self.driver.write(buffer, before, memoryview(array.tobytes()))
        return TensorUse(buffer, before, array.shape, str(array.dtype))

    def get(self, use: TensorUse) -> npt.NDArray[Any]:
        """Copy a tensor back."""
        kind = np.dtype(use.dtype)
        count = int(np.prod(use.shape))
        data = self.driver.read(use.buffer, use.byte_offset, count * kind.itemsize)
        return np.frombuffer(data, kind).reshape(use.shape)
