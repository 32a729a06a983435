"""Operators whose kernels are PrimFuncs written by hand, with their threads bound.

A kernel takes flat tensors and 32-bit integers. It is built by the platform's own generator, as if
it were an operator of its own; here its launch gets the memory and the numbers of the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import tvm
from msgspec import structs

from tapml_targets.codegen.expression import fold
from tapml_targets.codegen.lowering import ENTRY_NAME
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.expression import Expression, substitute
from tapml_targets.library import (
    BufferArgument,
    CodeModule,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    Parameter,
    ScalarArgument,
    Statement,
    Workspace,
    launches,
    with_launches,
)
from tapml_targets.limits import Limits

MOST_THREADS: Final = 256

Build: TypeAlias = Callable[[OperatorSource, Any], Library]
"""Makes a Library of an operator and a scheduled module."""


@dataclass(frozen=True)
class WrittenKernel:
    """A kernel as a PrimFunc over flat tensors, then integers of 32 bits.

    `tensors` has the dtype of each tensor by its name, and `numbers` the names of the integers,
    both in the order of the function's parameters.
    """

    function: Any
    tensors: Mapping[str, str]
    numbers: Sequence[str]


def threads_for(limits: Limits) -> int:
    """Threads of a workgroup: as many as the kernels are good with and the device allows."""
    return min(MOST_THREADS, limits.max_threads_per_block or MOST_THREADS)


def launch(kernel: str, tensors: Sequence[str], *numbers: Expression) -> Launch:
    """A launch of a written kernel, with what it takes in its own order."""
    return Launch(
        kernel,
        (
            *(BufferArgument(name) for name in tensors),
            *(ScalarArgument(value, "int32") for value in numbers),
        ),
    )


def blocks_of(elements: Expression, threads: int) -> Expression:
    """Workgroups that it takes for one thread per element."""
    return fold("floordiv", fold("add", elements, threads - 1), threads)


def library_of(
    source: OperatorSource,
    kernels: Mapping[str, WrittenKernel],
    statements: tuple[Statement, ...],
    workspaces: tuple[Workspace, ...],
    build: Build,
) -> Library:
    """The Library of an operator whose `statements` launch `kernels`, by :func:`launch`.

    Raises
    ------
    CompileError
        If the platform's generator refuses a kernel.
    """
    used = list(dict.fromkeys(each.kernel for each in launches(statements)))
    built = {name: _built(f"{source.identifier}_{name}", kernels[name], build) for name in used}
    modules: list[CodeModule] = []
    found: dict[str, Kernel] = {}
    for library in built.values():
        for name, kernel in library.kernels.items():
            found[name] = structs.replace(kernel, module=kernel.module + len(modules))
        modules += library.modules

    def given(written: Launch) -> Launch:
        kernel, library = kernels[written.kernel], built[written.kernel]
        (program,) = library.operators.values()
        (made,) = launches(program.statements)
        memory = dict(zip(kernel.tensors, written.arguments, strict=False))
        scalars = written.arguments[len(memory) :]
        numbers = {
            name: each.value
            for name, each in zip(kernel.numbers, scalars, strict=True)
            if isinstance(each, ScalarArgument)
        }
        arguments = tuple(
            memory[each.name]
            if isinstance(each, BufferArgument)
            else structs.replace(each, value=substitute(each.value, numbers))
            if isinstance(each, ScalarArgument)
            else each
            for each in made.arguments
        )
        x, y, z = (substitute(extent, numbers) for extent in made.grid)
        return structs.replace(made, arguments=arguments, grid=(x, y, z))

    program = OperatorProgram(
        source.name, source.parameters, with_launches(statements, given), workspaces, source.symbols
    )
    first = next(iter(built.values()))
    return replace(first, modules=tuple(modules), kernels=found, operators={source.name: program})


def _built(name: str, kernel: WrittenKernel, build: Build) -> Library:
    parameters = tuple(
        Parameter(tensor, (f"{tensor}_size",), dtype, "inout")
        for tensor, dtype in kernel.tensors.items()
    )
    function = kernel.function.with_attr("global_symbol", name)
    source = OperatorSource(name, "", parameters, tuple(kernel.numbers))
    return build(source, tvm.IRModule({ENTRY_NAME: function}))
