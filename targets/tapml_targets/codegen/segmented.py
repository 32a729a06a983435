"""An operator whose weight is larger than a binding may be: one launch per segment of its rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from msgspec import structs

from tapml_targets.codegen.segments import piece_of
from tapml_targets.codegen.source import SEGMENT_START, OperatorSource
from tapml_targets.errors import CompileError
from tapml_targets.library import (
    Bind,
    BufferArgument,
    CodeModule,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    Parameter,
    Statement,
    Workspace,
    with_launches,
)
from tapml_targets.limits import Limits
from tapml_targets.placement import with_placement

# Where a device states none, WebGPU's: a segment starts at a multiple of it.
_ALIGNMENT: Final = 256
# One launch each: more than this is no way to run a model.
_MOST_SEGMENTS: Final = 256

CompilePiece: TypeAlias = Callable[[OperatorSource, Any, Callable[[Any], Any]], Library]


@dataclass(frozen=True)
class _Cut:
    """How a tensor is cut: `count` segments of `rows` rows, the last one of `last`."""

    name: str
    position: int
    row_bytes: int
    rows: int
    count: int
    last: int


def in_segments(
    source: OperatorSource, function: Any, limits: Limits, compile_piece: CompilePiece
) -> Library | None:
    """The operator's Library, launched once per segment of the one tensor that needs them.

    Parameters
    ----------
    source
        The operator.
    function
        Its PrimFunc, unscheduled.
    limits
        What a binding holds and where it starts.
    compile_piece
        Makes the Library of a piece: of its source, its function, and what to do to the scheduled
        module.

    Returns
    -------
    Library or None
        None where every tensor of known size fits a binding, or cannot be cut: its limit is then
        named by who holds the Library against it.
    """
    cut = _cut(source.parameters, limits)
    if cut is None:
        return None
    libraries: list[Library] = []
    for rows in dict.fromkeys((cut.rows, cut.last)):
        piece = piece_of(function, cut.position, rows)
        if piece is None:
            return None
        given = _piece_source(source, cut, rows, "_last" if libraries else "")
        try:
            libraries.append(compile_piece(given, piece.function, piece.finish))
        except CompileError:
            return None
    return _joined(source, cut, libraries, limits)


def _cut(parameters: Sequence[Parameter], limits: Limits) -> _Cut | None:
    bound = limits.max_binding_bytes
    too_large = [
        (position, parameter)
        for position, parameter in enumerate(parameters)
        if bound and parameter.known_bytes > bound
    ]
    if len(too_large) != 1 or too_large[0][1].role != "input":
        return None
    ((position, parameter),) = too_large
    total = int(str(parameter.shape[0]))
    row_bytes = parameter.known_bytes // total
    alignment = limits.offset_alignment or _ALIGNMENT
    step = alignment // math.gcd(alignment, row_bytes)
    most = bound // row_bytes // step * step
    if most == 0:
        return None
    count = -(-total // most)
    rows = -(-total // (count * step)) * step
    count = -(-total // rows)
    if count > _MOST_SEGMENTS:
        return None
    return _Cut(parameter.name, position, row_bytes, rows, count, total - (count - 1) * rows)


def _piece_source(source: OperatorSource, cut: _Cut, rows: int, suffix: str) -> OperatorSource:
    parameters = list(source.parameters)
    whole = parameters[cut.position]
    parameters[cut.position] = structs.replace(whole, shape=(rows, *whole.shape[1:]))
    return replace(
        source,
        name=f"{source.name}{suffix}",
        parameters=tuple(parameters),
        symbols=(*source.symbols, SEGMENT_START),
    )


def _joined(
    source: OperatorSource, cut: _Cut, libraries: Sequence[Library], limits: Limits
) -> Library:
    modules: list[CodeModule] = []
    kernels: dict[str, Kernel] = {}
    workspaces: dict[str, Workspace] = {}
    programs: list[OperatorProgram] = []
    for number, library in enumerate(libraries):
        for name, kernel in library.kernels.items():
            kernels[name] = structs.replace(kernel, module=kernel.module + len(modules))
        modules += library.modules
        (program,) = library.operators.values()
        names = {each.name: f"{number}.{each.name}" for each in program.workspaces}
        workspaces |= {
            names[w.name]: structs.replace(w, name=names[w.name]) for w in program.workspaces
        }
        programs.append(_with_workspaces(program, names))
    statements: list[Statement] = []
    for index in range(cut.count):
        start, last = index * cut.rows, index == cut.count - 1
        rows, program = (cut.last, programs[-1]) if last else (cut.rows, programs[0])
        statements.append(Bind(SEGMENT_START, start))
        statements += _on_segment(program, cut, start, rows)
    how = (
        f"{cut.name} in {cut.count} segments of {cut.rows} rows: max_binding_bytes needs "
        f"{source.parameters[cut.position].known_bytes}, the device has "
        f"{limits.max_binding_bytes}"
    )
    return Library(
        target=libraries[0].target,
        modules=tuple(modules),
        kernels=kernels,
        operators={
            source.name: OperatorProgram(
                name=source.name,
                parameters=source.parameters,
                statements=tuple(statements),
                workspaces=tuple(workspaces.values()),
                symbols=source.symbols,
            )
        },
        metadata=with_placement(libraries[0].metadata, source.name, how),
    )


def _with_workspaces(program: OperatorProgram, names: dict[str, str]) -> OperatorProgram:
    def renamed(launch: Launch) -> Launch:
        arguments = (
            structs.replace(each, name=names.get(each.name, each.name))
            if isinstance(each, BufferArgument)
            else each
            for each in launch.arguments
        )
        return structs.replace(launch, arguments=tuple(arguments))

    return structs.replace(program, statements=with_launches(program.statements, renamed))


def _on_segment(
    program: OperatorProgram, cut: _Cut, start: int, rows: int
) -> tuple[Statement, ...]:
    def moved(launch: Launch) -> Launch:
        arguments = (
            BufferArgument(cut.name, start * cut.row_bytes, rows * cut.row_bytes)
            if isinstance(each, BufferArgument) and each.name == cut.name
            else each
            for each in launch.arguments
        )
        return structs.replace(launch, arguments=tuple(arguments))

    return with_launches(program.statements, moved)
