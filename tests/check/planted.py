"""Faults of memory and of synchronisation, planted in kernels of ``linear(x, w) = x @ w``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tapml.check.findings import FindingKind
from tapml.plan.graph_plan import Operator
from tapml_targets.library import CodeModule, Library
from tests.replaying.replay_kernels import (
    COLUMNS,
    ROWS,
    TERMS,
    linear_library,
    with_store,
    workspace_library,
)

_SIZE: Final = ROWS * COLUMNS


@dataclass(frozen=True)
class Plant:
    """A fault: what stands where the kernel writes a sum, and what must be found there.

    `line` is a part of the source line that must be named, `tensor` the tensor of the access; of
    a value that is not initialised, where it is written to.
    `guarded` is whether work-items beyond the output leave first: those wait at no barrier.
    """

    store: str
    kind: FindingKind
    line: str
    tensor: str = ""
    guarded: bool = True


PLANTS: Final = {
    "reads past an input": Plant(
        f"out[i] = sum + 0.0f * x[{ROWS * TERMS} + i];", "out-of-bounds read", "out[i] =", "p0"
    ),
    "reads past a weight, once": Plant(
        f"out[i] = sum + (i == 5 ? 0.0f * w[{TERMS * COLUMNS}] : 0.0f);",
        "out-of-bounds read",
        "out[i] =",
        "p1",
    ),
    "reads before a weight": Plant(
        "out[i] = sum + (i == 5 ? 0.0f * w[-1] : 0.0f);", "out-of-bounds read", "w[-1]", "p1"
    ),
    "writes past the output": Plant(
        f"out[i] = sum; if (i == 9) out[{_SIZE}] = sum;",
        "out-of-bounds write",
        f"out[{_SIZE}] = sum",
        "p2",
    ),
    "writes past a workspace": Plant(
        f"space[i] = sum; if (i == 9) space[{_SIZE}] = sum; out[i] = space[i];",
        "out-of-bounds write",
        f"space[{_SIZE}] = sum",
        "space",
    ),
    "reads a workspace first": Plant(
        "out[i] = sum + 0.0f * space[i]; space[i] = 1;",
        "uninitialised value",
        "0.0f * space[i]",
        "p2",
    ),
    "reads its output first": Plant(
        "out[i] = sum + 0.0f * out[i];", "uninitialised value", "0.0f * out[i]", "p2"
    ),
    "missing barrier": Plant(
        "int t = get_local_id(0); __local float s[64]; s[t] = sum;\n  float other = s[t ^ 1];\n"
        f"  if (i < {_SIZE}) out[i] = sum + 0.0f * other;",
        "data race",
        "s[t]",
        guarded=False,
    ),
    "two write one place": Plant(
        f"if (i < {_SIZE}) out[i] = sum;\n  if (i < 2) space[0] = sum;",
        "data race",
        "space[0] = sum",
        "space",
        guarded=False,
    ),
    "divergent barrier": Plant(
        "if (get_local_id(0) < 32)\n    barrier(CLK_LOCAL_MEM_FENCE);\n"
        f"  if (i < {_SIZE}) out[i] = sum;",
        "barrier divergence",
        "barrier(CLK_LOCAL_MEM_FENCE)",
        guarded=False,
    ),
    "uninitialised local memory": Plant(
        "int t = get_local_id(0); __local float s[64]; if (t < 63) s[t] = sum;\n"
        f"  barrier(CLK_LOCAL_MEM_FENCE);\n  if (i < {_SIZE})\n    out[i] = sum + 0.0f * s[t];",
        "uninitialised value",
        "out[i] = sum + 0.0f * s[t]",
        "p2",
        guarded=False,
    ),
    "index beyond a local array": Plant(
        "int t = get_local_id(0); __local float s[64]; s[t] = sum;\n"
        f"  barrier(CLK_LOCAL_MEM_FENCE);\n  if (i < {_SIZE})\n    out[i] = sum + 0.0f * s[t + 1];",
        "out-of-bounds read",
        "out[i] = sum + 0.0f * s[t + 1]",
        guarded=False,
    ),
    "unaligned vector": Plant(
        "out[i] = sum + 0.0f * (*(__global const float4*)(x + 1)).x;",
        "unaligned access",
        "float4",
    ),
}


def planted_library(operator: Operator, name: str) -> Library:
    """The operator's Library with one of :data:`PLANTS`."""
    plant = PLANTS[name]
    library = workspace_library(operator, 0) if "space" in plant.store else linear_library(operator)
    planted = with_store(library, plant.store)
    if plant.guarded:
        return planted
    # Every work-item of a group reaches the barrier; those beyond the output compute on row 0.
    source = planted.modules[0].code.decode()
    source = source.replace(f"if (i >= {_SIZE}) return;", "")
    source = source.replace(
        f"int row = i / {COLUMNS}", f"int row = i < {_SIZE} ? i / {COLUMNS} : 0"
    )
    return replace(planted, modules=(CodeModule("opencl-c", source.encode()),))
