"""``(n, 48) @ (32, 48).T`` as an OpenCL kernel that is wrong in a way of one's choice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.plan.graph_plan import Origin
from tapml.reduce.device import ReopeningDevice
from tapml.reduce.trials import Candidate, Trials
from tapml.repro.writing import write_repro
from tapml.verdicts.policy import Policy
from tapml_targets.library import (
    BufferArgument,
    CodeModule,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    ScalarArgument,
)
from tests.compiler.operators import matmul_transposed

ROWS: Final = 17
TERMS: Final = 48
COLUMNS: Final = 32
TEST: Final = "prefill/model.layers.0.mlp/matmul.1@p3.s0"
ORIGIN: Final = Origin("model.layers.0.mlp", "private/modeling_secret.py:12", "aten.mm", "mm_3")
_BLOCK: Final = 64
_SOURCE: Final = """
__kernel void matmul(__global const float* x, __global const float* w, __global float* out,
                     int n) {{
  int i = get_global_id(0);
  if (i >= n * 32) return;
  int row = i / 32, column = i % 32;
  float sum = 0.0f;
  for (int k = 0; k < 48; ++k) sum += x[row * 48 + k] * w[column * 48 + k];
  {wrong}
  out[i] = sum;
}}
"""
WRONG: Final = {
    "right": "",
    "first term missing": "sum -= x[row * 48] * w[column * 48];",
    "from five rows on": "if (n >= 5) sum += 1.0f;",
    "one element only": "if (row == 6 && column == 7) sum += x[row * 48 + 3];",
    "NaN above 40": "if (x[row * 48 + 5] > 40.0f) sum = sum * 0.0f / 0.0f;",
    "this very number": "if (x[0] == 1.2345f) sum += 1.0f;",
    # As a driver that dies: the server ends with it, or its deadline ends the server.
    "hangs for few rows": "while (n < 3) {} sum += 1.0f;",
}


def library(wrong: str) -> Library:
    """The operator's Library, wrong in the way named."""
    operator = matmul_transposed()
    blocks = ("floordiv", ("add", ("mul", "n", COLUMNS), _BLOCK - 1), _BLOCK)
    launch = Launch(
        "matmul",
        (*(BufferArgument(f"p{i}") for i in range(3)), ScalarArgument("n", "int32")),
        grid=(blocks, 1, 1),
        block=(_BLOCK, 1, 1),
    )
    source = _SOURCE.format(wrong=WRONG[wrong])
    return Library(
        target="opencl",
        modules=(CodeModule("opencl-c", source.encode()),),
        kernels={"matmul": Kernel("matmul", "matmul", 0)},
        operators={"matmul": OperatorProgram("matmul", operator.parameters, (launch,))},
    )


def inputs(rows: int = ROWS) -> tuple[NDArray[Any], NDArray[Any]]:
    """Activations and a weight of a model, so to speak."""
    generator = np.random.default_rng(5)
    x = generator.standard_normal((rows, TERMS)).astype(np.float32)
    w = generator.standard_normal((COLUMNS, TERMS)).astype(np.float32)
    return x, w


def failing_folder(
    folder: Path,
    device: ReopeningDevice,
    wrong: str,
    arrays: tuple[NDArray[Any], ...] | None = None,
    *,
    policy: Policy | None = None,
    own_library: Library | None = None,
) -> Path:
    """A repro folder of the operator with a wrong kernel, replayed on a device."""
    trials = Trials(matmul_transposed(), own_library or library(wrong), policy or Policy(), device)
    result = trials.run(Candidate(arrays or inputs(), {}), TEST)
    assert result is not None
    failure = replace(trials.failure(result), origins=(ORIGIN,))
    return write_repro(folder, failure)
