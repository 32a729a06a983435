"""One compilation in the isolated child: plain data in, a packed Library out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tapml_targets.codegen.source import OperatorSource
from tapml_targets.errors import CompileError, CompilerFailedError, TapmlError
from tapml_targets.expression import from_wire
from tapml_targets.library import Library, OperatorProgram, Parameter
from tapml_targets.library_format import pack
from tapml_targets.limits import Limits
from tapml_targets.platforms import check_platform, platform_part
from tapml_targets.target import Target

COMPILE: Final = "tapml.compiler.job:compile_operator"


def to_payload(source: OperatorSource, target: Target) -> dict[str, Any]:
    """The input of :func:`compile_operator` as plain data."""
    return {
        "name": source.name,
        "function": source.function,
        "parameters": [[p.name, p.shape, p.dtype, p.role] for p in source.parameters],
        "symbols": list(source.symbols),
        "platform": target.platform,
        "options": [list(option) for option in target.options],
        "limits": msgspec.to_builtins(target.limits, order="deterministic"),
    }


def compile_operator(payload: dict[str, Any]) -> bytes:
    """Compile one operator with the platform's code generator.

    Returns
    -------
    bytes
        The Library as :func:`tapml_targets.library_format.pack` writes it.

    Raises
    ------
    CompileError
        If the operator cannot be compiled for the target.
    """
    source = OperatorSource(
        name=payload["name"],
        function=payload["function"],
        parameters=tuple(
            Parameter(name, tuple(from_wire(extent) for extent in shape), dtype, role)
            for name, shape, dtype, role in payload["parameters"]
        ),
        symbols=tuple(payload["symbols"]),
    )
    target = Target(
        platform=check_platform(payload["platform"]),
        options=tuple((name, value) for name, value in payload["options"]),
        limits=msgspec.convert(payload["limits"], Limits),
    )
    written = [each for each in source.parameters if each.role != "input"]
    if written and all(0 in each.shape for each in written):
        # Nothing is written: TVM's schedules divide by extents of 0.
        program = OperatorProgram(source.name, source.parameters, (), (), source.symbols)
        return pack(Library(target.platform, (), {}, {source.name: program}))
    generator = platform_part(target.platform, "codegen")
    with _named(source.name, target.platform):
        return pack(generator.generate(source, target))


@contextlib.contextmanager
def _named(operator: str, platform: str) -> Iterator[None]:
    """Add the operator and the target to every error."""
    where = f"operator {operator!r} does not compile for {platform}"
    try:
        yield
    except CompileError as error:
        raise type(error)(f"{where}: {error}") from error
    except Exception as error:
        from tapml_targets.codegen.lowering import refusal

        refused = isinstance(error, (TapmlError, NotImplementedError))
        kind = CompileError if refused else CompilerFailedError
        raise kind(f"{where}: {refusal(error)}") from error
