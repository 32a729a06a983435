"""Operators that are one launch of one OpenCL C kernel whose text is understood."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tapml.compiler.opencl_text import KernelText, read_kernel
from tapml_targets.expression import Expression, substitute, symbols_of
from tapml_targets.library import (
    Argument,
    Bind,
    BufferArgument,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    ScalarArgument,
    TensorArgument,
)

_DIALECT = "opencl-c"


@dataclass(frozen=True)
class SingleLaunch:
    """An operator that launches one kernel once, and nothing beside it.

    Attributes
    ----------
    program
        The operator.
    launch
        Its launch; its expressions read symbols of the parameters' shapes and the operator's own.
    kernel, options, text
        What is launched.
    target
        The Library's platform.
    """

    program: OperatorProgram
    launch: Launch
    kernel: Kernel
    options: tuple[str, ...]
    text: KernelText
    target: str

    def may_join(self, other: SingleLaunch) -> bool:
        """Whether the two agree in what a kernel has once: block, build options, platform."""
        mine = (self.launch.block, self.options, self.target)
        return mine == (other.launch.block, other.options, other.target)


def single_launch(library: Library, name: str) -> SingleLaunch | None:
    """The operator `name` of a Library as a single launch; None where it is more or other."""
    program = library.operators.get(name)
    if program is None or program.workspaces:
        return None
    bound: dict[str, Expression] = {}
    *before, launch = program.statements or (None,)
    for statement in before:
        if not isinstance(statement, Bind):
            return None
        bound[statement.symbol] = substitute(statement.value, bound)
    if not isinstance(launch, Launch) or any(
        isinstance(each, TensorArgument) for each in launch.arguments
    ):
        return None
    kernel = library.kernels[launch.kernel]
    module = library.modules[kernel.module]
    if module.dialect != _DIALECT or not all(isinstance(each, int) for each in launch.block):
        return None
    text = read_kernel(module.code, kernel.symbol)
    if text is None or len(text.parameters) != len(launch.arguments):
        return None
    return SingleLaunch(
        program, rewritten(launch, bound), kernel, module.options, text, library.target
    )


def rewritten(launch: Launch, values: Mapping[str, Expression]) -> Launch:
    """The launch with expressions in place of symbols."""

    def argument(given: Argument) -> Argument:
        if isinstance(given, ScalarArgument):
            return replace(given, value=substitute(given.value, values))
        if isinstance(given, TensorArgument):
            return given
        nbytes = None if given.nbytes is None else substitute(given.nbytes, values)
        return replace(given, byte_offset=substitute(given.byte_offset, values), nbytes=nbytes)

    x, y, z = (substitute(extent, values) for extent in launch.grid)
    return replace(launch, arguments=tuple(map(argument, launch.arguments)), grid=(x, y, z))


def symbols_in(launch: Launch) -> frozenset[str]:
    """The symbols that a launch of one known block reads."""
    expressions: list[Expression] = list(launch.grid)
    for argument in launch.arguments:
        if isinstance(argument, ScalarArgument):
            expressions.append(argument.value)
        elif isinstance(argument, BufferArgument):
            expressions += [argument.byte_offset, argument.nbytes or 0]
    return frozenset().union(*map(symbols_of, expressions))
