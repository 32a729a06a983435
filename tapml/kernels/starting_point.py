"""The folder a developer starts from: manifest, source, the function, the shapes of its tests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tapml.carving.carved_test import CarvedTest
from tapml.durable.files import replace_folder, write_text, writing
from tapml.graph.plan import Operator
from tapml.kernels.assembly import assemble
from tapml.kernels.dialects import Dialect, dialect_of
from tapml.kernels.manifest import MANIFEST, read_manifest
from tapml.kernels.manifest_text import manifest_of_library
from tapml.kernels.skeleton import skeleton
from tapml.kernels.written import kernel_folder
from tapml_targets.errors import CompileError, InputError
from tapml_targets.expression import bind_shape
from tapml_targets.library import Library
from tapml_targets.target import Target

FUNCTION: Final = "function.txt"
_SHAPES_SHOWN: Final = 12
_DECLARED_BEFORE: Final = re.compile(r"^(?:// Function: .*|__kernel void \w+\([^;{]*\);)\n", re.M)


@dataclass(frozen=True)
class StartingPoint:
    """What `tapml kernel new` wrote.

    Attributes
    ----------
    folder
        Where.
    files
        Names in it, the manifest first.
    compiled
        Whether it starts with the compiled kernel; else with a skeleton.
    why
        Why it is a skeleton; empty where it is not.
    """

    folder: Path
    files: tuple[str, ...]
    compiled: bool
    why: str


def write_starting_point(
    folder: Path,
    operator: Operator,
    tests: Sequence[CarvedTest],
    target: Target,
    compiled: Callable[[], Library],
) -> StartingPoint:
    """Write a kernel's folder, whole or not at all.

    Parameters
    ----------
    folder
        Of kernels: the session's own or a shared one.
    operator, tests
        The operator and its carved tests.
    target
        What the kernel is for.
    compiled
        Gives the compiler's kernel; raises CompileError where there is none.

    Raises
    ------
    InputError
        If there is a kernel already.
    SetupError
        If the folder cannot be written.
    """
    place = kernel_folder(folder, operator.name, target.platform)
    if place.exists():
        raise InputError(
            f"{place} is there already: edit it, or move it away to begin with the compiled kernel"
        )
    dialect = dialect_of(target.platform)
    files, why = _files(operator, dialect, target, compiled)
    notes = _notes(operator, tests)
    with writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
    with replace_folder(place) as partial:
        for name, text in files.items():
            comment = f"{_comment(notes)}\n" if name.endswith(f".{dialect.extension}") else ""
            write_text(partial / name, comment + text)
        write_text(partial / FUNCTION, operator.script)
        # What was written must be what is read: before anybody sees it.
        assemble(read_manifest(partial / MANIFEST), operator)
    return StartingPoint(place, (*files, FUNCTION), not why, why)


def _files(
    operator: Operator, dialect: Dialect, target: Target, compiled: Callable[[], Library]
) -> tuple[dict[str, str], str]:
    """Manifest and sources, the manifest first, and why they are a skeleton."""
    try:
        return _of_library(operator, dialect, target, compiled()), ""
    except CompileError as error:
        why = f"the compiler gives none: {error}"
    except (InputError, UnicodeDecodeError) as error:
        why = f"the compiled kernel cannot be written as a manifest: {error}"
    manifest, source = skeleton(operator, target, dialect)
    return {MANIFEST: manifest, f"{operator.name}.{dialect.extension}": source}, why


def _of_library(
    operator: Operator, dialect: Dialect, target: Target, library: Library
) -> dict[str, str]:
    count = len(library.modules)
    names = [
        f"{operator.name}{f'_{index}' if count > 1 else ''}.{dialect.extension}"
        for index in range(count)
    ]
    files = {MANIFEST: manifest_of_library(operator, target.platform, library, names)}
    for name, module in zip(names, library.modules, strict=True):
        # The code generator declares every kernel twice; who edits one wants to find one.
        files[name] = _DECLARED_BEFORE.sub("", module.code.decode()).rstrip() + "\n"
    return files


def _notes(operator: Operator, tests: Sequence[CarvedTest]) -> list[str]:
    """What one wants to know while writing: parameters, and the shapes carved."""
    roles = {"input": "read", "output": "written", "inout": "read and written"}
    lines = [
        f"{operator.name}: what it computes is in {FUNCTION}, how it is launched in {MANIFEST}.",
        "",
        "Parameters, in the operator's order:",
    ]
    for parameter in operator.parameters:
        shape = ", ".join(map(str, parameter.shape))
        lines.append(f"  {parameter.name} {parameter.dtype}[{shape}] {roles[parameter.role]}")
    lines += ["", f"Carved tests: {len(tests)}" + (", by shape:" if tests else "")]
    shapes = Counter(_shape(operator, test) for test in tests)
    for text, count in list(shapes.items())[:_SHAPES_SHOWN]:
        lines.append(f"  {count:4d} of {text}")
    if len(shapes) > _SHAPES_SHOWN:
        lines.append(f"  and {len(shapes) - _SHAPES_SHOWN} other shapes")
    return lines


def _shape(operator: Operator, test: CarvedTest) -> str:
    symbols = dict(test.symbols)
    tensors = iter((*test.inputs, *test.outputs))
    parts = []
    for parameter in operator.parameters:
        tensor = next(tensors)
        bind_shape(parameter.shape, tensor.shape, symbols, parameter.name)
        parts.append(f"{parameter.name} {list(tensor.shape)}")
    values = ", ".join(f"{name} = {value}" for name, value in symbols.items())
    return f"{test.entry}: {', '.join(parts)}" + (f"  ({values})" if values else "")


def _comment(lines: Sequence[str]) -> str:
    return "\n".join(f"// {line}".rstrip() for line in lines) + "\n"
