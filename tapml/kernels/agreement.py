"""Compares a manifest with its operator, and a launch's arguments with the kernel's source."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tapml.kernels.expression_text import ExpressionError, Scope, parse, substitute, write
from tapml.kernels.manifest import Manifest, ManifestLaunch
from tapml.kernels.signature import Signature, SourceArgument
from tapml.plan.graph_plan import Operator
from tapml_targets.dtype import dtype
from tapml_targets.expression import Expression
from tapml_targets.library import Argument, BufferArgument, Parameter, ScalarArgument

_PARAMETER: Final = re.compile(r"(input|output|inout) (\w+) (\w+)\[(.*)\]")


def spell_parameter(parameter: Parameter) -> str:
    """A parameter as a manifest states it: ``input input_0 float32[1, S, 128]``."""
    shape = ", ".join(write(extent) for extent in parameter.shape)
    return f"{parameter.role} {parameter.name} {parameter.dtype}[{shape}]"


def check_parameters(manifest: Manifest, operator: Operator) -> dict[str, Expression]:
    """Map the manifest's symbols to the operator's symbols and numbers.

    Parameters that the manifest states must be the operator's, up to the names of symbols, which
    differ between models; a symbol may also stand for an extent that is fixed in this model.

    Raises
    ------
    CompileError
        Naming the first parameter that differs.
    """
    own: dict[str, Expression] = {symbol: symbol for symbol in operator.symbols}
    for parameter in operator.parameters:
        own |= {extent: extent for extent in parameter.shape if isinstance(extent, str)}
    if manifest.parameters is None:
        return own
    difference = differing_parameter(manifest, operator)
    if difference is not None:
        index, problem = difference
        raise manifest.places.error(("parameters", index), problem)
    return own | _meanings(manifest, operator)


def differing_parameter(manifest: Manifest, operator: Operator) -> tuple[int, str] | None:
    """The first stated parameter that is not the operator's, and why; None if all are."""
    stated = manifest.parameters or ()
    if len(stated) != len(operator.parameters):
        wanted = ", ".join(spell_parameter(parameter) for parameter in operator.parameters)
        return 0, (
            f"{operator.name} has {len(operator.parameters)} parameters, the manifest states "
            f"{len(stated)}; expected {wanted}"
        )
    if len(manifest.symbols) != len(operator.symbols):
        return 0, (
            f"{operator.name} takes {len(operator.symbols)} numbers along with its tensors "
            f"({', '.join(operator.symbols) or 'none'}), the manifest's symbols are "
            f"{', '.join(manifest.symbols) or 'none'}"
        )
    meanings: dict[str, Expression] = dict(zip(manifest.symbols, operator.symbols, strict=True))
    for index, (text, parameter) in enumerate(zip(stated, operator.parameters, strict=True)):
        problem = _compare(text, parameter, meanings)
        if problem:
            return index, (
                f"{problem}; expected {spell_parameter(parameter)!r} for {operator.name}, got "
                f"{text[:200]!r}"
            )
    return None


def _meanings(manifest: Manifest, operator: Operator) -> dict[str, Expression]:
    meanings: dict[str, Expression] = dict(zip(manifest.symbols, operator.symbols, strict=True))
    for text, parameter in zip(manifest.parameters or (), operator.parameters, strict=True):
        _compare(text, parameter, meanings)
    return meanings


def _compare(text: str, parameter: Parameter, meanings: dict[str, Expression]) -> str:
    """How a stated parameter differs; empty if it does not. Binds symbols."""
    found = _PARAMETER.fullmatch(" ".join(text.split()))
    if found is None:
        return "this is not a parameter"
    role, name, element, shape = found.groups()
    for what, stated, actual in (
        ("name", name, parameter.name),
        ("role", role, parameter.role),
        ("dtype", element, parameter.dtype),
    ):
        if stated != actual:
            return f"the {what} differs"
    extents = _split(shape)
    if len(extents) != len(parameter.shape):
        return "the number of dimensions differs"
    for extent, actual_extent in zip(extents, parameter.shape, strict=True):
        try:
            stated_extent = parse(extent, Scope(open=True))
        except ExpressionError as error:
            return error.problem
        if isinstance(stated_extent, str) and isinstance(actual_extent, str | int):
            meanings.setdefault(stated_extent, actual_extent)
        if substitute(stated_extent, lambda symbol: meanings.get(symbol, symbol)) != actual_extent:
            return "the shape differs"
    return ""


def _split(shape: str) -> list[str]:
    """The extents of ``1, min(S, 4), 128``."""
    parts, depth = [""], 0
    for character in shape:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [] if parts == [""] else parts


def check_arguments(
    manifest: Manifest,
    operator: Operator,
    launch: ManifestLaunch,
    arguments: Sequence[Argument],
    signature: Signature,
    source: Path,
) -> None:
    """Compare the arguments of a launch with the kernel's declaration in its source.

    Raises
    ------
    CompileError
        If their number, kinds, order or roles differ.
    """
    key = (*launch.key, "arguments")
    place = f"{source}:{signature.line}"
    taken = signature.arguments
    if len(arguments) != len(taken):
        raise manifest.places.error(
            key,
            f"expected {len(taken)} arguments, as {launch.entry} takes at {place}, got "
            f"{len(arguments)}\n{_beside(arguments, taken)}",
        )
    parameters = {parameter.name: parameter for parameter in operator.parameters}
    buffers = {*parameters, *manifest.workspaces}
    for index, (argument, wanted) in enumerate(zip(arguments, taken, strict=True)):
        problem = _problem(argument, wanted, parameters, buffers)
        if problem:
            raise manifest.places.error(
                (*key, index),
                f"{problem} (argument {index + 1} of {launch.entry} at {place})\n"
                f"{_beside(arguments, taken)}",
            )


def _problem(
    argument: Argument,
    wanted: SourceArgument,
    parameters: Mapping[str, Parameter],
    buffers: set[str],
) -> str:
    """Why the kernel cannot take an argument; empty if it can."""
    if wanted.kind == "local":
        return (
            f"the kernel takes shared memory, {wanted.text!r}, which no launch passes: declare it "
            "inside the kernel, as an array of a fixed size"
        )
    if wanted.kind == "other":
        return f"the kernel takes {wanted.text!r}, which no operator has: expected buffers, numbers"
    if isinstance(argument, ScalarArgument):
        return _scalar_problem(argument, wanted)
    assert isinstance(argument, BufferArgument)  # noqa: S101 - no other kind is made
    if wanted.kind == "scalar":
        return f"expected a number for {wanted.text!r}, got the buffer {argument.name}"
    meant = wanted.name.removesuffix("_ptr")
    if meant in buffers and meant != argument.name:
        return f"wrong order: the kernel calls this {wanted.name}, it is given {argument.name}"
    parameter = parameters.get(argument.name)
    if wanted.constant and parameter is not None and parameter.role == "output":
        return f"{argument.name} is written by the operator, the kernel takes it as constant"
    return ""


def _scalar_problem(argument: ScalarArgument, wanted: SourceArgument) -> str:
    given = write(argument.value)
    if wanted.kind == "buffer":
        return f"expected a buffer for {wanted.text!r}, got the number {given}"
    if not wanted.dtype:
        return ""
    # Without `bool`, which OpenCL C passes as a char.
    have, want = (
        dtype("int8" if name == "bool" else name) for name in (argument.dtype, wanted.dtype)
    )
    if (have.bits, have.is_float) != (want.bits, want.is_float):
        return f"expected dtype = {wanted.dtype!r} for {wanted.text!r}, got {argument.dtype!r}"
    return ""


def _beside(arguments: Sequence[Argument], taken: Sequence[SourceArgument]) -> str:
    """Passed and declared arguments side by side, a line each."""
    given = [
        f"{write(argument.value)} as {argument.dtype}"
        if isinstance(argument, ScalarArgument)
        else argument.name
        for argument in arguments
    ]
    count = max(len(given), len(taken))
    width = max(map(len, given), default=0)
    lines = []
    for index in range(min(count, 16)):
        left = given[index] if index < len(given) else "(nothing)"
        right = taken[index].text if index < len(taken) else "(nothing)"
        lines.append(f"  {index + 1:2d}  {left:{max(width, 9)}}  ->  {right}")
    return "\n".join(lines)
