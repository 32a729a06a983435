"""Writes the folder of a new kernel: manifest, source, the function, the shapes of its tests.

The source is the compiled kernel, or a skeleton with the right signature if there is none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tapml.durable.files import replace_folder, write_text, writing
from tapml.kernels.assembly import assemble
from tapml.kernels.dialects import language_of
from tapml.kernels.manifest import MANIFEST, read_manifest
from tapml.kernels.manifest_text import manifest_head, manifest_of_library
from tapml.kernels.skeleton import write_skeleton
from tapml.kernels.written import kernel_folder
from tapml.plan.graph_plan import Operator
from tapml.suite.carved_test import CarvedTest
from tapml_targets.errors import CompileError, InputError
from tapml_targets.expression import bind_shape
from tapml_targets.kernel_language import KernelLanguage
from tapml_targets.library import Library
from tapml_targets.target import Target

FUNCTION: Final = "function.txt"
_SHAPES_SHOWN: Final = 12


@dataclass(frozen=True)
class StartingPoint:
    """The result of `tapml kernel new`.

    Attributes
    ----------
    folder
        The kernel's folder.
    files
        Names of its files, the manifest first.
    compiled
        Whether it starts with the compiled kernel; else with a skeleton.
    why
        Why it is a skeleton; empty if it is not.
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
    """Write a kernel's folder atomically.

    Parameters
    ----------
    folder
        Folder of kernels: the session's own or a shared one.
    operator, tests
        The operator and its carved tests.
    target
        The kernel's target.
    compiled
        Returns the compiler's kernel; raises CompileError if there is none.

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
    language = language_of(target.platform)
    files, why = _files(operator, language, target, compiled)
    notes = _notes(operator, tests)
    with writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
    with replace_folder(place) as partial:
        for name, text in files.items():
            comment = (
                f"{_comment(language, notes)}\n" if name.endswith(f".{language.extension}") else ""
            )
            write_text(partial / name, comment + text)
        write_text(partial / FUNCTION, operator.script)
        # Read the files back before they become visible.
        assemble(read_manifest(partial / MANIFEST), operator)
    return StartingPoint(place, (*files, FUNCTION), not why, why)


def _files(
    operator: Operator, language: KernelLanguage, target: Target, compiled: Callable[[], Library]
) -> tuple[dict[str, str], str]:
    """Manifest and sources, the manifest first, and why they are a skeleton."""
    try:
        return _of_library(operator, language, target, compiled()), ""
    except CompileError as error:
        why = f"the compiler has none: {error}"
    except (InputError, UnicodeDecodeError) as error:
        why = f"the compiled kernel cannot be written as a manifest: {error}"
    manifest, source = _skeleton(operator, target, language)
    return {MANIFEST: manifest, f"{operator.name}.{language.extension}": source}, why


def _of_library(
    operator: Operator, language: KernelLanguage, target: Target, library: Library
) -> dict[str, str]:
    count = len(library.modules)
    names = [
        f"{operator.name}{f'_{index}' if count > 1 else ''}.{language.extension}"
        for index in range(count)
    ]
    files = {MANIFEST: manifest_of_library(operator, target.platform, library, names)}
    for name, module in zip(names, library.modules, strict=True):
        text = re.sub(language.noise, "", module.code.decode(), flags=re.MULTILINE)
        files[name] = text.rstrip() + "\n"
    return files


def _notes(operator: Operator, tests: Sequence[CarvedTest]) -> list[str]:
    """Notes for the developer: parameters, and the carved shapes."""
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


def _comment(language: KernelLanguage, lines: Sequence[str]) -> str:
    return "\n".join(f"{language.line_comment} {line}".rstrip() for line in lines) + "\n"


_THREADS: Final = 64


def _skeleton(operator: Operator, target: Target, language: KernelLanguage) -> tuple[str, str]:
    """Manifest and source with one thread per element of the first output, which writes nothing.

    `tapml kernel check` then reports that no element was written.
    """
    first = operator.written[0]
    entry = f"{operator.name}_kernel"
    symbols = _symbols(operator)
    threads = min(_THREADS, target.limits.max_threads_per_block or _THREADS)
    lines = [
        "",
        "[[launches]]",
        f'entry = "{entry}"',
        "# In the order of the kernel in its source.",
        "arguments = [",
        *(f'  "{parameter.name}",' for parameter in operator.parameters),
        *(
            f'  {{ scalar = "{symbol}", dtype = "{language.skeleton.integer}" }},'
            for symbol in symbols
        ),
        f'  {{ scalar = "{first.name}.size", dtype = "{language.skeleton.integer}" }},',
        "]",
        "# Blocks (work-groups) and threads of each, as (x, y, z).",
        f'grid = ["ceildiv({first.name}.size, {threads})"]',
        f"block = [{threads}]",
    ]
    source = f"{operator.name}.{language.extension}"
    manifest = manifest_head(operator, target.platform, [source]) + "\n".join(lines) + "\n"
    return manifest, write_skeleton(language, entry, operator.parameters, symbols, threads)


def _symbols(operator: Operator) -> list[str]:
    shapes = [extent for parameter in operator.parameters for extent in parameter.shape]
    return list(dict.fromkeys((*(e for e in shapes if isinstance(e, str)), *operator.symbols)))
