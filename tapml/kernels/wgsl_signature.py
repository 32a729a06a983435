"""Finds a kernel's arguments in WGSL: its bindings in order, then the members of its uniform."""

from __future__ import annotations

import re
from typing import Final

from tapml.kernels.signature import Signature, SourceArgument
from tapml_targets.errors import CompileError
from tapml_targets.webgpu.module_text import (
    PACKED_GRID,
    READ,
    SCALARS,
    read_module,
    without_comments,
)

WGSL_OPTIONS: Final[dict[str, str]] = {}
"""WGSL has no build options."""

_ENTRY: Final = re.compile(r"\bfn\s+([A-Za-z_]\w*)\s*\(")
_MARKED: Final = re.compile(r"@\s*(?:compute|workgroup_size)\b[^;{}]*?\bfn\s+([A-Za-z_]\w*)\s*\(")
_BINDING: Final = re.compile(
    r"@binding\(\s*(\d+)u?\s*\)\s*(var\s*<\s*(storage|uniform)[^>]*>\s*([A-Za-z_]\w*)\s*:([^;]*))"
)
_ARRAY: Final = re.compile(r"\s*array\s*<\s*(?:atomic\s*<\s*)?(\w+)")
_ELEMENTS: Final = {**SCALARS, "f16": "float16"}


def read_wgsl_entries(text: str) -> list[str]:
    """The entry points of a module by name, in order."""
    return _MARKED.findall(without_comments(text))


def read_wgsl_signature(text: str, entry: str) -> Signature | None:
    """What a kernel is given: one argument a storage binding, then one a number of its uniform.

    Returns
    -------
    Signature or None
        None where the module has no such entry, or is not of the form that the platform takes,
        which who compiles it says.
    """
    try:
        module = read_module(text.encode())
    except CompileError:
        return None
    if module.symbol != entry:
        return None
    bare = without_comments(text)
    at = next(match for match in _ENTRY.finditer(bare) if match[1] == entry)
    arguments: list[SourceArgument] = []
    uniform = ""
    for found in sorted(_BINDING.finditer(bare), key=lambda match: int(match[1])):
        _, spelled, space, name, kind = found.groups()
        if space == "uniform":
            uniform = kind.strip()
            continue
        element = _ARRAY.match(kind)
        constant = module.access[len(arguments)] == READ
        dtype = _ELEMENTS.get(element[1], "") if element is not None else ""
        arguments.append(SourceArgument(name, "buffer", dtype, constant, " ".join(spelled.split())))
    arguments += _scalars(bare, uniform)
    return Signature(entry, tuple(arguments), bare.count("\n", 0, at.start()) + 1)


def _scalars(text: str, struct: str) -> list[SourceArgument]:
    """The members of the uniform struct; the driver itself fills in how the grid is folded."""
    body = re.search(rf"\bstruct\s+{re.escape(struct)}\s*\{{([^{{}}]*)\}}", text)
    found = []
    for member in "" if body is None else filter(None, map(str.strip, body[1].split(","))):
        name, _, kind = (part.strip() for part in member.partition(":"))
        if name != PACKED_GRID:
            found.append(SourceArgument(name, "scalar", SCALARS[kind], True, f"{name}: {kind}"))
    return found
