"""Calls and the exact launches they mean, as files an evaluator in another language reads.

Each file of ``golden/`` holds a packed Library, a call, and either its plan or the error it ends
in. ``python -m tests.targets.golden_vectors`` writes them again: that changes what a Library means,
and every evaluator has to follow. Scalars are decimal text, since not every language has 64-bit
integers in JSON; a quotient is the eight bytes of its float64, the sign first, in hexadecimal.
"""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from tapml_targets.call_plan import (
    BufferSlot,
    CallPlan,
    PlannedArgument,
    TensorShape,
    TensorSlot,
    plan_call,
)
from tapml_targets.errors import InputError
from tapml_targets.library import (
    Bind,
    BufferArgument,
    CodeModule,
    Condition,
    EntryCall,
    EntryProgram,
    EntryStorage,
    EntryValue,
    Kernel,
    Launch,
    Library,
    Loop,
    OperatorProgram,
    Parameter,
    ScalarArgument,
    Statement,
    TensorArgument,
    Workspace,
)
from tapml_targets.library_format import pack
from tests.targets.libraries import library

FOLDER: Final = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Vector:
    """One call of one Library."""

    library: Library
    call: str
    tensors: tuple[TensorShape, ...]
    symbols: dict[str, int] = field(default_factory=dict)


def to_json(vector: Vector) -> dict[str, Any]:
    """What a file holds."""
    data: dict[str, Any] = {
        "library": base64.b64encode(pack(vector.library)).decode(),
        "call": vector.call,
        "tensors": [[list(t.shape), t.dtype] for t in vector.tensors],
        "symbols": vector.symbols,
    }
    try:
        plan = plan_call(vector.library, vector.call, vector.tensors, vector.symbols)
    except InputError:
        return data | {"error": "input"}
    return data | {"plan": plan_to_json(plan)}


def plan_to_json(plan: CallPlan) -> dict[str, Any]:
    """A plan as plain data."""
    return {
        "workspaces": [[w.name, w.nbytes, w.shared] for w in plan.workspaces],
        "launches": [
            {
                "kernel": launch.kernel,
                "grid": list(launch.grid),
                "block": list(launch.block),
                "step": launch.step,
                "dynamic_shared_bytes": launch.dynamic_shared_bytes,
                "arguments": [_argument(argument) for argument in launch.arguments],
            }
            for launch in plan.launches
        ],
    }


def _argument(argument: PlannedArgument) -> list[Any]:
    if isinstance(argument, BufferSlot):
        return ["buffer", argument.slot, argument.byte_offset, argument.nbytes]
    if isinstance(argument, TensorSlot):
        return ["tensor", argument.slot, argument.byte_offset, list(argument.shape), argument.dtype]
    if isinstance(argument.value, float):
        return ["scalar", struct.pack(">d", argument.value).hex(), argument.dtype]
    return ["scalar", str(argument.value), argument.dtype]


def vectors() -> dict[str, Vector]:
    """All of them by file name."""
    floats = (TensorShape((100,), "float32"), TensorShape((100,), "float32"))
    none = (TensorShape((0,), "float32"), TensorShape((0,), "float32"))
    short = (TensorShape((3,), "float32"), TensorShape((4,), "float32"))
    sort = _merge_sort()
    return {
        "operator": Vector(library(), "add_one", floats),
        "operator_with_workspace": Vector(library(), "double_add", floats),
        "operator_with_symbol": Vector(library(), "overrun", floats, {"place": -3}),
        "operator_without_elements": Vector(library(), "add_one", none),
        "entry": Vector(library(), "chain", floats),
        "shapes_disagree": Vector(library(), "add_one", short),
        "symbol_missing": Vector(library(), "overrun", floats),
        "merge_sort_odd": Vector(sort, "sort", (TensorShape((2, 13), "float32"),)),
        "merge_sort_single": Vector(sort, "sort", (TensorShape((1, 1), "float32"),)),
        "windows": Vector(
            _windows(), "entry", (TensorShape((6, 8), "float16"), TensorShape((8,), "int32"))
        ),
        "part": Vector(_part(), "all", (TensorShape((7,), "uint8"),)),
        "part_too_large": Vector(_part(), "all", (TensorShape((3,), "uint8"),)),
        "expressions": Vector(_expressions(), "all", (TensorShape((7,), "uint8"),), {"m": -7}),
        "division_by_zero": Vector(_expressions(), "all", (TensorShape((7,), "uint8"),), {"m": 0}),
        "quotients": Vector(_quotients(), "all", (TensorShape((7,), "uint8"),), {"m": -3}),
        "quotient_too_large": Vector(_quotients(), "all", (TensorShape((7,), "uint8"),), {"m": 0}),
        "dynamic_shared": Vector(_dynamic_shared(), "all", (TensorShape((7,), "uint8"),)),
        "dynamic_shared_negative": Vector(_dynamic_shared(), "all", (TensorShape((1,), "uint8"),)),
        "endless": Vector(
            _program(Loop("i", 0, 1 << 40, ())), "all", (TensorShape((1,), "uint8"),)
        ),
    }


def _library(
    *operators: OperatorProgram, entries: dict[str, EntryProgram] | None = None
) -> Library:
    return Library(
        "opencl",
        (CodeModule("none", b""),),
        {name: Kernel(name, name, 0) for name in ("first", "second")},
        {operator.name: operator for operator in operators},
        entries or {},
    )


def _program(*statements: Statement) -> Library:
    parameter = Parameter("a", ("n",), "uint8", "inout")
    return _library(OperatorProgram("all", (parameter,), statements))


def _part() -> Library:
    """Four bytes of a tensor that must have six."""
    return _program(Launch("first", (BufferArgument("a", 2, ("sub", 6, 2)),)))


def _quotients() -> Library:
    """Numbers of floats that are no integers, and integers as floats; `m` is a divisor."""
    large = ("shift_left", ("shift_left", 1, 63), 60)
    values: list[tuple[Any, str, Any]] = [
        (1, "float32", "n"),
        ("n", "float32", 1),
        ("n", "float64", "m"),
        (0, "float16", "m"),
        (1, "float32", 2),
        ("n", "float32", 7),
        # Halfway between two numbers, just above it, and just below.
        ((1 << 54) + 2, "float64", 2),
        (("add", ("shift_left", (1 << 54) + 2, 20), 1), "float64", ("shift_left", 2, 20)),
        (("sub", ("shift_left", (1 << 54) + 6, 20), 1), "float64", ("shift_left", 2, 20)),
        (large, "float32", 3),
        (3, "float32", large),
        (-5, "float16", large),
        (65504, "float16", ("sub", 0, 1)),
        (1, "float64", ("shift_left", ("shift_left", large, 63), 63)),
    ]
    arguments = tuple(ScalarArgument(*value) for value in values)
    program = _program(Launch("first", arguments))
    operator = structs.replace(program.operators["all"], symbols=("m",))
    return replace(program, operators={"all": operator})


def _dynamic_shared() -> Library:
    """Shared memory that a launch asks for: 4 n - 12 bytes, in a kernel for one architecture."""
    size: Any = ("sub", ("mul", "n", 4), 12)
    launch = Launch("first", (BufferArgument("a"),), ("n", 1, 1), (32, 1, 1), size)
    program = _program(launch)
    module = CodeModule("none", b"", (), "machine", "sm_90")
    kernels = {"first": Kernel("first", "first", 0, 32, 0, ("dynamic_shared_memory",), 32)}
    return replace(program, modules=(module,), kernels=kernels)


def _merge_sort() -> Library:
    """The shape of TVM's merge sort: rounds that double a width and swap two buffers."""
    count = ("mul", "rows", "n")
    width = ("shift_left", 1, "round")
    into_workspace = ("eq", ("floormod", "round", 2), 0)
    grid = (("floordiv", ("add", "n", 255), 256), "rows", 1)
    extra = (ScalarArgument(width, "int32"), ScalarArgument("n", "int64"))

    def merge(source: str, target: str) -> Launch:
        buffers = (BufferArgument(target), BufferArgument(source))
        return Launch("first", (*buffers, *extra), grid, (256, 1, 1))

    rounds = ("select", ("le", "n", 1), 0, ("select", ("le", "n", 4), 2, 4))
    return _library(
        OperatorProgram(
            "sort",
            (Parameter("a", ("rows", "n"), "float32", "inout"),),
            (
                Bind("rounds", rounds),
                Loop(
                    "round",
                    0,
                    "rounds",
                    (Condition(into_workspace, (merge("a", "swap"),), (merge("swap", "a"),)),),
                ),
            ),
            (Workspace("swap", ("mul", count, 4)),),
        )
    )


def _windows() -> Library:
    """Offsets in storages and in values, tensors as arguments, two workspaces."""
    operator = OperatorProgram(
        "operator",
        (
            Parameter("x", ("r", "c"), "float16", "input"),
            Parameter("y", ("c",), "int32", "inout"),
        ),
        (
            Launch("first", (TensorArgument("x"), TensorArgument("y"))),
            Launch(
                "second",
                (
                    BufferArgument("x", ("mul", ("mul", "c", 2), 1)),
                    BufferArgument("scratch", "k"),
                    BufferArgument("more"),
                    ScalarArgument(("mul", "k", 1 << 40), "int64"),
                ),
                ("r", "c", 2),
                (8, 4, 1),
            ),
        ),
        (Workspace("scratch", ("mul", "k", 16)), Workspace("more", 12)),
        ("k",),
    )
    entry = EntryProgram(
        "entry",
        (
            Parameter("a", ("rows", "columns"), "float16", "input"),
            Parameter("b", ("columns",), "int32", "inout"),
        ),
        (EntryStorage("t", ("mul", "columns", 64)),),
        (
            EntryValue(
                "half", "a", ("mul", "columns", 4), (("sub", "rows", 2), "columns"), "float16"
            ),
            EntryValue("b", "b", 0, ("columns",), "int32"),
            EntryValue("t", "t", ("mul", "columns", 16), ("columns",), "int32"),
        ),
        (
            EntryCall("operator", ("half", "t"), (("k", 2),)),
            EntryCall("operator", ("half", "b"), (("k", "rows"),)),
        ),
    )
    return _library(operator, entries={"entry": entry})


def _expressions() -> Library:
    """Every operation, on values of both signs; `m` is a divisor."""
    n, m = "n", "m"
    values: list[Any] = [
        ("add", n, m),
        ("sub", n, m),
        ("mul", n, m),
        ("floordiv", n, m),
        ("floordiv", m, 2),
        ("floordiv", 15, ("sub", 0, 4)),
        ("floormod", m, 4),
        ("floormod", 7, ("sub", 0, 4)),
        ("truncdiv", m, 2),
        ("truncdiv", -9, -4),
        ("min", n, m),
        ("max", n, m),
        ("shift_left", n, 3),
        ("shift_right", m, 1),
        ("bit_and", n, 12),
        ("eq", n, n),
        ("ne", n, n),
        ("lt", m, n),
        ("le", n, n),
        ("gt", m, n),
        ("ge", n, m),
        ("and", m, 2),
        ("and", n, 0),
        ("or", 0, m),
        ("or", 0, 0),
        ("not", m),
        ("not", 0),
        ("select", ("lt", m, 0), 11, 22),
        ("add", ("mul", n, 1 << 60), 5),
        ("ceil_log2", n),
        ("ceil_log2", 8),
        ("ceil_log2", 0),
    ]
    arguments = tuple(ScalarArgument(value, "int64") for value in values)
    program = _program(Launch("first", arguments))
    operator = structs.replace(program.operators["all"], symbols=("m",))
    return replace(program, operators={"all": operator})


def main() -> None:
    """Write all files."""
    FOLDER.mkdir(exist_ok=True)
    for name, vector in vectors().items():
        text = json.dumps(to_json(vector), indent=1)
        (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
