"""Small Libraries for any platform, written once.

The table of a platform's language, its ``conformance.py``, makes modules of a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tapml_targets.conformance_kernels import (
    ADD,
    BLOCK,
    OVERRUN,
    PEEK,
    SCALE,
    SLOW,
    THREADS,
    KernelTable,
    KernelText,
    built,
    kernel_table,
)
from tapml_targets.driver import (
    Driver,
    TensorUse,
)
from tapml_targets.expression import Expression
from tapml_targets.library import (
    Argument,
    BufferArgument,
    EntryCall,
    EntryProgram,
    EntryStorage,
    EntryValue,
    Launch,
    Library,
    OperatorProgram,
    Parameter,
    ScalarArgument,
    TensorArgument,
    Workspace,
)

BLOCKS: Final = (("floordiv", ("add", "n", THREADS - 1), THREADS), 1, 1)
VECTORS: Final = (
    Parameter("a", ("n",), "float32", "input"),
    Parameter("o", ("n",), "float32", "output"),
)


KERNELS: Final = (ADD, SCALE, OVERRUN, PEEK)


def slow_result(count: int) -> npt.NDArray[np.uint32]:
    """What :data:`SLOW` writes into `count` elements."""
    factor, summand = 1, 0
    for _ in range(60000):
        factor, summand = factor * 1664525 % 2**32, (summand * 1664525 + 1013904223) % 2**32
    numbers = np.arange(count, dtype=np.uint64)
    return (numbers * np.uint64(factor) + np.uint64(summand)).astype(np.uint32)


def launch(table: KernelTable, kernel: KernelText, *tensors: str, **scalars: Expression) -> Launch:
    """A launch of `kernel` on the output and the inputs that `tensors` names."""
    arguments: tuple[Argument, ...] = (
        *(BufferArgument(each) if table.POINTERS else TensorArgument(each) for each in tensors),
        *(
            ScalarArgument(scalars.get(name, name), dtype)
            for name, dtype in kernel.all_scalars.items()
        ),
    )
    if not table.POINTERS:
        return Launch(kernel.name, arguments)
    return Launch(kernel.name, arguments, BLOCKS, BLOCK)


def add_one(platform: str = "opencl") -> OperatorProgram:
    """o = a + 1."""
    statements = (launch(kernel_table(platform), ADD, "o", "a", amount=1),)
    return OperatorProgram("add_one", VECTORS, statements)


def _operators(platform: str) -> tuple[OperatorProgram, ...]:
    table = kernel_table(platform)
    between = "w" if table.POINTERS else "o"
    workspaces = (Workspace("w", ("mul", "n", 4)),) if table.POINTERS else ()
    double_add = OperatorProgram(
        "double_add",
        VECTORS,
        (
            launch(table, SCALE, between, "a"),
            launch(table, ADD, "o", between, amount=1),
        ),
        workspaces,
    )
    if not table.POINTERS:
        return (add_one(platform), double_add)
    show = launch(table, PEEK, "o", "w")
    return (
        add_one(platform),
        double_add,
        OperatorProgram(
            "overrun", VECTORS, (launch(table, OVERRUN, "w", "a"), show), workspaces, ("place",)
        ),
        OperatorProgram(
            "overrun_output", VECTORS, (launch(table, OVERRUN, "o", "a"),), (), ("place",)
        ),
        OperatorProgram("peek", VECTORS, (show,), workspaces),
    )


def _entries() -> tuple[EntryProgram, ...]:
    nbytes: Expression = ("mul", "n", 4)
    aligned: Expression = ("mul", ("floordiv", ("add", nbytes, 255), 256), 256)
    given, made = (
        EntryValue("in", "a", 0, ("n",), "float32"),
        EntryValue("out", "o", 0, ("n",), "float32"),
    )
    middle, second = (
        EntryValue("middle", "t", 0, ("n",), "float32"),
        EntryValue("second", "t", aligned, ("n",), "float32"),
    )
    return (
        EntryProgram(
            "chain",
            VECTORS,
            (EntryStorage("t", nbytes),),
            (given, middle, made),
            (EntryCall("double_add", ("in", "middle")), EntryCall("add_one", ("middle", "out"))),
        ),
        EntryProgram(
            "shared",
            VECTORS,
            (EntryStorage("t", ("mul", aligned, 2)),),
            (given, middle, second, made),
            (
                EntryCall("add_one", ("in", "middle")),
                EntryCall("add_one", ("middle", "second")),
                EntryCall("add_one", ("second", "out")),
            ),
        ),
    )


def library(platform: str = "opencl") -> Library:
    """Operators ``add_one``, ``double_add`` (2 a + 1), and entries over intermediates.

    ``chain`` is 2 a + 2; ``shared`` is a + 3 and keeps its intermediates in one storage. Where
    kernels take pointers `double_add` has a workspace, and there are ``overrun`` and
    ``overrun_output``, which write at the index `place` of a workspace or of `o`, and ``peek``,
    which returns what an unwritten workspace holds.
    """
    modules, kernels = built(platform, *KERNELS)
    return Library(
        platform,
        modules,
        kernels,
        {operator.name: operator for operator in _operators(platform)},
        {entry.name: entry for entry in _entries()},
        {"model": "by hand"},
    )


def slow_library(platform: str) -> Library:
    """The operator ``slow(o)``, which computes for a while."""
    modules, kernels = built(platform, SLOW)
    o = Parameter("o", ("n",), "uint32", "inout")
    statements = (launch(kernel_table(platform), SLOW, "o"),)
    return Library(platform, modules, kernels, {"slow": OperatorProgram("slow", (o,), statements)})


def edited(of: Library, before: str, after: str) -> Library:
    """The Library with `before`, which some of its modules contain, replaced."""
    old, new = before.encode(), after.encode()
    assert any(old in module.code for module in of.modules), f"no module holds {before!r}"
    changed = (replace(each, code=each.code.replace(old, new)) for each in of.modules)
    return replace(of, modules=tuple(changed))


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
