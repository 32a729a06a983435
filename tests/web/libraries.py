"""Libraries of hand-written WGSL for a browser."""

from __future__ import annotations

from dataclasses import replace

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
from tests.targets.webgpu.wgsl import ADD, SLOW

# Writes one element behind the end of what it was given, where a workspace is long enough.
OVERRUN = """\
@group(0) @binding(0) var<storage, read_write> w : array<f32>;
struct Arguments { place: i32 }
@group(0) @binding(1) var<uniform> arguments : Arguments;
@compute @workgroup_size(1)
fn overrun() { w[arguments.place] = 3.0; }
"""


def add_library(source: str = ADD) -> Library:
    """Operators ``add_one(a, o)``, ``add_two(a, o)`` over a workspace, and the entry ``chain``.

    In `chain` all intermediates share one storage, so that a kernel reads and writes one buffer.
    """
    a = Parameter("a", ("n",), "float32", "input")
    o = Parameter("o", ("n",), "float32", "output")

    def add(target: str, from_: str) -> Launch:
        return Launch(
            "add",
            (
                BufferArgument(target),
                BufferArgument(from_),
                ScalarArgument("n", "int32"),
                ScalarArgument(1, "float32"),
            ),
            (("floordiv", ("add", "n", 63), 64), 1, 1),
            (64, 1, 1),
        )

    size = ("mul", "n", 4)
    aligned = ("mul", ("floordiv", ("add", size, 255), 256), 256)
    entry = EntryProgram(
        "chain",
        (a, o),
        (EntryStorage("t", ("mul", aligned, 2)),),
        (
            EntryValue("in", "a", 0, ("n",), "float32"),
            EntryValue("first", "t", 0, ("n",), "float32"),
            EntryValue("second", "t", aligned, ("n",), "float32"),
            EntryValue("out", "o", 0, ("n",), "float32"),
        ),
        (
            EntryCall("add_one", ("in", "first")),
            EntryCall("add_one", ("first", "second")),
            EntryCall("add_two", ("second", "out")),
        ),
    )
    return Library(
        "webgpu",
        (CodeModule("wgsl", source.encode()),),
        {"add": Kernel("add", "add", 0, 64)},
        {
            "add_one": OperatorProgram("add_one", (a, o), (add("o", "a"),)),
            "add_two": OperatorProgram(
                "add_two", (a, o), (add("w", "a"), add("o", "w")), (Workspace("w", size),)
            ),
        },
        {"chain": entry},
    )


def overrun_library(target: str = "w") -> Library:
    """An operator ``overrun(o)`` that writes float `place` of its workspace of 4 KiB, or of `o`."""
    launch = Launch("overrun", (BufferArgument(target), ScalarArgument("place", "int32")))
    operator = OperatorProgram(
        "overrun",
        (Parameter("o", ("n",), "float32", "output"),),
        (launch,),
        (Workspace("w", 4096),),
        ("place",),
    )
    return Library(
        "webgpu",
        (CodeModule("wgsl", OVERRUN.encode()),),
        {"overrun": Kernel("overrun", "overrun", 0, 1)},
        {"overrun": operator},
    )


def slow_library() -> Library:
    """The operator ``slow(o)``, which computes for a while."""
    o = Parameter("o", ("n",), "uint32", "inout")
    launch = Launch("slow", (BufferArgument("o"),), (("floordiv", "n", 64), 1, 1), (64, 1, 1))
    return Library(
        "webgpu",
        (CodeModule("wgsl", SLOW.encode()),),
        {"slow": Kernel("slow", "slow", 0, 64)},
        {"slow": OperatorProgram("slow", (o,), (launch,))},
    )


def with_dialect(library: Library, dialect: str) -> Library:
    """The same Library with its text called something else."""
    return replace(
        library, modules=tuple(replace(each, dialect=dialect) for each in library.modules)
    )
