"""One compilation as the isolated child runs it: plain data in, a packed Library out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, fields
from importlib import import_module
from typing import Any

from tapml_targets.codegen.source import OperatorSource
from tapml_targets.errors import CompileError
from tapml_targets.expression import from_wire
from tapml_targets.library import Parameter
from tapml_targets.library_format import pack
from tapml_targets.limits import Limits
from tapml_targets.platforms import check_platform
from tapml_targets.target import Target


def to_payload(source: OperatorSource, target: Target) -> dict[str, Any]:
    """What :func:`compile_operator` takes, as data that msgpack carries."""
    limits = asdict(target.limits)
    limits["features"] = sorted(target.limits.features)
    return {
        "name": source.name,
        "function": source.function,
        "parameters": [[p.name, p.shape, p.dtype, p.role] for p in source.parameters],
        "symbols": list(source.symbols),
        "platform": target.platform,
        "options": [list(option) for option in target.options],
        "limits": limits,
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
        limits=_limits(payload["limits"]),
    )
    generator = import_module(f"tapml_targets.{target.platform}.codegen")
    with _named(source.name, target.platform):
        return pack(generator.generate(source, target))


@contextlib.contextmanager
def _named(operator: str, platform: str) -> Iterator[None]:
    """Every failure inside names the operator and the target."""
    where = f"operator {operator!r} does not compile for {platform}"
    try:
        yield
    except CompileError as error:
        raise type(error)(f"{where}: {error}") from error
    except Exception as error:
        from tapml_targets.codegen.lowering import refusal

        raise CompileError(f"{where}: {refusal(error)}") from error


def _limits(data: dict[str, Any]) -> Limits:
    known = {field.name: data[field.name] for field in fields(Limits) if field.name in data}
    for name in ("max_block", "max_grid"):
        known[name] = tuple(known[name])
    known["features"] = frozenset(known["features"])
    return Limits(**known)
