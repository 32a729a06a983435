"""One operator, ``linear(x, w) = x @ w``, as OpenCL kernels: right, and wrong in many ways."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from tvm import relax

from tapml.compiler.reference_module import ReferenceModule
from tapml.plan.graph_plan import Operator
from tapml_targets.library import (
    BufferArgument,
    CodeModule,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    Workspace,
)
from tests.oracles.cases import Array, MemoryCase, make_case
from tests.oracles.operators import make_operator

ROWS: Final = 7
TERMS: Final = 60
# Square, so that a transposed weight still has the right shape.
COLUMNS: Final = 60
_BLOCK: Final = 64

_SOURCE: Final = """
__kernel void linear(__global float* out, __global {qualifier} float* x,
                     __global const float* w{parameters}) {{
  int i = get_global_id(0);
  {guard}
  int row = i / {columns}, column = i % {columns};
  float sum = {start};
  for (int k = {first}; k < {terms}; ++k) sum += x[{left}] * w[{right}];
  {store}
}}
"""
_RIGHT: Final = {
    "qualifier": "const",
    "parameters": "",
    "guard": f"if (i >= {ROWS * COLUMNS}) return;",
    "columns": str(COLUMNS),
    "start": "0.0f",
    "first": "0",
    "terms": str(TERMS),
    "left": f"row * {TERMS} + k",
    "right": f"k * {COLUMNS} + column",
    "store": "out[i] = sum;",
}
# What each wrong kernel changes. Every one compiles, runs and returns.
WRONG: Final = {
    "index shift": {"right": f"k * {COLUMNS} + (column + 1) % {COLUMNS}"},
    "reduction start": {"first": "1"},
    "reduction initial value": {"start": "1.0f"},
    "reduction without initial value": {"start": "out[i]"},
    "missing guard": {"guard": ""},
    "transposed weight": {"right": f"column * {TERMS} + k"},
    "stale output": {"store": f"if (i < {ROWS * COLUMNS - 5}) out[i] = sum;"},
    "input changed": {"qualifier": "", "store": "out[i] = sum; x[i % 400] = 0.0f;"},
    "unsafe NaN": {"store": "out[i] = sum > 8.0f ? sum * 0.0f / 0.0f : sum;"},
    "write before": {"store": "out[i] = sum; if (i == 0) out[-3] = 1.0f;"},
}
_SWAPPED: Final = (BufferArgument("p2"), BufferArgument("p1"), BufferArgument("p0"))


def linear_operator() -> Operator:
    return make_operator(
        "linear", [((ROWS, TERMS), "float32"), ((TERMS, COLUMNS), "float32")], relax.op.matmul
    )


def linear_case(
    operator: Operator, reference: ReferenceModule, *, seed: int = 0, name: str = "linear@0"
) -> MemoryCase:
    """A test with a weight; some sums are above 8."""
    generator = np.random.default_rng(seed)
    x: Array = generator.standard_normal((ROWS, TERMS)).astype(np.float32)
    w: Array = generator.standard_normal((TERMS, COLUMNS)).astype(np.float32)
    return make_case(operator, reference, [x, w], name=name, weights=[1])


def linear_library(operator: Operator, wrong: str = "") -> Library:
    """The operator's Library, right or wrong in the way named."""
    source = _SOURCE.format(**(_RIGHT | WRONG.get(wrong, {})))
    arguments = (BufferArgument("p2"), BufferArgument("p0"), BufferArgument("p1"))
    if wrong == "swapped arguments":
        arguments = _SWAPPED
    return _library(operator, source, arguments)


def workspace_library(operator: Operator, overrun: int) -> Library:
    """A right kernel that also writes its workspace, `overrun` elements too far."""
    size = ROWS * COLUMNS
    source = _SOURCE.format(
        **(
            _RIGHT
            | {
                "parameters": ", __global float* space",
                "store": f"space[i] = sum; if (i < {overrun}) space[{size} + i] = sum; "
                "out[i] = space[i];",
            }
        )
    )
    arguments = (
        BufferArgument("p2"),
        BufferArgument("p0"),
        BufferArgument("p1"),
        BufferArgument("space"),
    )
    return _library(operator, source, arguments, (Workspace("space", size * 4),))


def with_store(library: Library, store: str) -> Library:
    """`library` with another statement where its kernel writes a sum."""
    lines = library.modules[0].code.decode().split("\n")
    (at,) = (number for number, line in enumerate(lines) if "out[i] = " in line)
    lines[at] = f"  {store}"
    return replace(library, modules=(CodeModule("opencl-c", "\n".join(lines).encode()),))


def _library(
    operator: Operator,
    source: str,
    arguments: tuple[BufferArgument, ...],
    workspaces: tuple[Workspace, ...] = (),
) -> Library:
    blocks = -(-ROWS * COLUMNS // _BLOCK)
    launch = Launch("linear", arguments, grid=(blocks, 1, 1), block=(_BLOCK, 1, 1))
    return Library(
        target="opencl",
        modules=(CodeModule("opencl-c", source.encode()),),
        kernels={"linear": Kernel("linear", "linear", 0)},
        operators={"linear": OperatorProgram("linear", operator.parameters, (launch,), workspaces)},
    )
