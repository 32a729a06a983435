"""Entries of a few plain OpenCL kernels over memory that they share, made by hand or by chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tapml.graph.plan import CallStep, Entry, GraphPlan, StateBinding, Storage, Value
from tapml.graph.plan import TensorSpecification as Specification
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

BLOCK = 8
ROW_BYTES = 4 * BLOCK
Array = np.ndarray[Any, Any]

ADD = """\
__kernel void add_kernel(__global float* restrict a, __global float* restrict b,
                         __global float* restrict out) {
  int i = (((convert_int(get_group_id(0))) * 8) + (convert_int(get_local_id(0))));
  out[i] = a[i] + (0.5f * b[i]);
}
"""
TURN = """\
__kernel void turn_kernel(__global float* restrict a, __global float* restrict out, long n) {
  __local float buffer[8];
  if ((long)get_group_id(0) >= n) {
    return;
  }
  buffer[get_local_id(0)] = a[(get_group_id(0) * 8) + get_local_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  out[(get_group_id(0) * 8) + get_local_id(0)] = buffer[(get_local_id(0) + 3) & 7] - 1.25f;
}
"""
SHIFT = """\
__kernel void shift_kernel(__global float* restrict a, __global float* restrict out) {
  int i = (((convert_int(get_group_id(0))) * 8) + (convert_int(get_local_id(0))));
  out[i] = (a[i] * 0.75f) + 2.0f;
}
"""
# Plain texts of what reductions and their neighbours look like: work for some threads of a group.
SOME_THREADS = """\
__kernel void {name}_kernel(__global float* restrict a, __global float* restrict out) {{
  if ((convert_int(get_local_id(0))) < 6) {{
    out[(convert_int(get_local_id(0)))] = {what}(a[(convert_int(get_local_id(0)))]);
  }}
}}
"""
FOLD = """\
__kernel void fold_kernel(__global float* restrict a, __global float* restrict out) {
  __local float buffer[8];
  buffer[(convert_int(get_local_id(0)))] = a[(convert_int(get_local_id(0)))];
  barrier(CLK_LOCAL_MEM_FENCE);
  if ((convert_int(get_local_id(0))) < 4) {
    buffer[(convert_int(get_local_id(0)))] += buffer[((convert_int(get_local_id(0))) + 4)];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  out[(convert_int(get_local_id(0)))] = a[(convert_int(get_local_id(0)))] - buffer[0];
}
"""


def library_of(name: str, text: str, inputs: int, *scalars: str, **given: Any) -> Library:
    """An operator over tensors ``(m, 8)`` that launches one kernel: a group for each row."""
    names = [*(f"p{n}" for n in range(inputs)), "out"]
    launch = Launch(
        kernel=f"{name}_kernel",
        arguments=(
            *(BufferArgument(each) for each in names),
            *(ScalarArgument(each, "int64") for each in scalars),
        ),
        grid=given.get("grid", ("m", 1, 1)),
        block=given.get("block", (BLOCK, 1, 1)),
    )
    return Library(
        target="opencl",
        modules=(CodeModule("opencl-c", text.encode(), given.get("options", ())),),
        kernels={launch.kernel: Kernel(launch.kernel, f"{name}_kernel", 0)},
        operators={
            name: OperatorProgram(
                name,
                tuple(
                    Parameter(each, ("m", BLOCK), "float32", "output" if each == "out" else "input")
                    for each in names
                ),
                (launch,),
            )
        },
    )


LIBRARIES = {
    "add": library_of("add", ADD, 2),
    "turn": library_of("turn", TURN, 1, "m"),
    "shift": library_of("shift", SHIFT, 1),
}
INPUTS = {"add": 2, "turn": 1, "shift": 1}


@dataclass
class Steps:
    """Collects the calls of an entry ``run`` with the symbol ``S``.

    Storages named in `kept` are outputs and so keep their bytes; others are intermediates. ``x``
    is the input. Every storage has `rows` rows and, behind them, ``S`` rows more; a value is one of
    the two windows, ``name:0`` or ``name:1``, or the whole, ``name``.
    """

    kept: Sequence[str]
    scratch: Sequence[str] = ()
    rows: int = 2
    state: bool = False
    calls: list[CallStep] = field(default_factory=list)

    def call(self, operator: str, *values: str) -> None:
        """Append a call."""
        self.calls.append(CallStep(f"run/{len(self.calls)}", operator, values))

    def plan(self) -> GraphPlan:
        """The plan of this one entry."""
        storages = ["x", *self.kept, *self.scratch]
        nbytes = ("add", self.rows * ROW_BYTES, ("mul", ROW_BYTES, "S"))
        whole = ("add", self.rows, "S")
        values: dict[str, Value] = {}
        for name in storages:
            values[name] = Value(name, name, 0, (whole, BLOCK), "float32")
            values[f"{name}:0"] = Value(f"{name}:0", name, 0, (self.rows, BLOCK), "float32")
            values[f"{name}:1"] = Value(
                f"{name}:1", name, self.rows * ROW_BYTES, ("S", BLOCK), "float32"
            )
        kinds = {name: Storage(name, nbytes, "activation") for name in storages}
        kinds["x"] = Storage("x", nbytes, "input")
        bindings: tuple[StateBinding, ...] = ()
        if self.state:
            for name, lifetime in (("memory", "state"), ("memory.new", "activation")):
                kinds[name] = Storage(name, 3 * ROW_BYTES, lifetime)  # type: ignore[arg-type]
                values[name] = Value(name, name, 0, (3, BLOCK), "float32")
            bindings = (StateBinding("memory", "memory", "memory.new"),)
        entry = Entry(
            name="run",
            symbols=("S",),
            inputs=("x",),
            outputs=tuple(self.kept),
            state=bindings,
            values=values,
            storages=kinds,
            steps=tuple(self.calls),
        )
        state = {"memory": Specification("memory", (3, BLOCK), "float32")} if self.state else {}
        return GraphPlan("by hand", {}, {"run": entry}, {}, state)


def arrays_of(library: Library, more: int, rows: int) -> list[Array]:
    """What an entry's parameters hold before a call: numbers that no two elements share."""
    arrays: list[Array] = []
    for number, parameter in enumerate(library.entries["run"].parameters):
        extent = 3 if "memory" in parameter.name else rows + more
        values = np.arange(extent * BLOCK, dtype=np.float32) * 0.03 + number
        arrays.append(values.reshape(extent, BLOCK))
    return arrays


@st.composite
def steps(draw: st.DrawFn) -> Steps:
    """Calls in any order over windows of six memories: read before and after they are written."""
    # Four rows are 128 bytes: what a window may start at on any device.
    made = Steps(kept=("a", "b", "c"), scratch=("d", "e"), rows=4)
    written: set[str] = set()
    for _ in range(draw(st.integers(2, 9))):
        operator = draw(st.sampled_from(sorted(INPUTS)))
        part = draw(st.sampled_from(("", ":0", ":1")))
        target = draw(st.sampled_from("abcde"))
        # What an intermediate holds before it is written is nobody's to read.
        readable = [
            name
            for name in ("x", "a", "b", "c", "d", "e")
            if name != target and (name in "xabc" or f"{name}{part}" in written or name in written)
        ]
        values = [f"{draw(st.sampled_from(readable))}{part}" for _ in range(INPUTS[operator])]
        made.call(operator, *values, f"{target}{part}")
        written.add(f"{target}{part}")
    return made
