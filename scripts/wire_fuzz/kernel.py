"""The operator that fuzzers and soak tests run: ``add_one(x, y)`` over float32."""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np

from tapml_rpc.client import RemoteLibrary, RemoteTensor, Session
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

_ELEMENTS: Final = 1024
_SOURCE: Final = b"""
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


def operator_test(
    session: Session, library: RemoteLibrary, first: float, *, record: bool = False
) -> None:
    """Run one test in one batch, as a replay of carved tests does, and check its result.

    Raises
    ------
    ValueError
        If the result is wrong.
    """
    given = np.arange(_ELEMENTS, dtype=np.float32) + np.float32(first)
    with session.batch() as batch:
        tensors = [
            RemoteTensor(batch.allocate(given.nbytes), 0, given.shape, "float32") for _ in "xy"
        ]
        batch.write(tensors[0].buffer, given)
        batch.fill(tensors[1].buffer, b"\xff")
        if record:
            with batch.program("add") as program:
                program.call(library, "add_one", tensors)
            batch.execute(program)
        else:
            batch.call(library, "add_one", tensors)
        read = batch.read(tensors[1].buffer)
        for tensor in tensors:
            batch.free(tensor.buffer)
    if not np.array_equal(np.frombuffer(read.result(), np.float32), given + 1):
        raise ValueError("an operator's result is wrong")
