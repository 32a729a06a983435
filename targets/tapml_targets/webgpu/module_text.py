"""Reads a WGSL module's bindings, scalars and workgroup from its text.

Only the forms of this platform's modules are accepted (see :mod:`tapml_targets.webgpu`), since a
misread binding would be bound wrongly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tapml_targets.errors import CompileError

READ: Final = "read"
READ_WRITE: Final = "read_write"
PACKED_GRID: Final = "packGridDimX"
SCALARS: Final = {"i32": "int32", "u32": "uint32", "f32": "float32"}

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_BINDING: Final = re.compile(
    rf"@group\(\s*(\d+)u?\s*\)\s*@binding\(\s*(\d+)u?\s*\)\s*"
    rf"var\s*(<\s*(storage|uniform)\s*(?:,\s*(read|read_write)\s*)?>)\s*({_NAME})\s*:([^;]*);"
)
_ANY_BINDING: Final = re.compile(r"@\s*(?:binding|group)\b")
_ENTRY: Final = re.compile(
    rf"@compute\s+@workgroup_size\(([^)]*)\)\s*fn\s+({_NAME})\s*\(|"
    rf"@workgroup_size\(([^)]*)\)\s*@compute\s+fn\s+({_NAME})\s*\("
)
_ANY_ENTRY: Final = re.compile(r"@\s*(?:compute|vertex|fragment)\b")
_STRUCT: Final = r"\bstruct\s+{}\s*\{{([^{{}}]*)\}}"
_MEMBER: Final = re.compile(rf"({_NAME})\s*:\s*({_NAME})")
_INTEGER: Final = re.compile(r"(\d+)[iu]?")
_CONSTANT: Final = re.compile(rf"\bconst\s+({_NAME})\s*(?::\s*[iu]32\s*)?=\s*(\d+)[iu]?\s*;")
_ALIAS: Final = re.compile(rf"\balias\s+({_NAME})\s*=([^;]*);")
_WORKGROUP: Final = re.compile(rf"var\s*<\s*workgroup\s*>\s*({_NAME})\s*:([^;]*);")
_ANY_WORKGROUP: Final = re.compile(r"<\s*workgroup\b")
_ARRAY: Final = re.compile(r"array\s*<(.*),\s*(\w+)\s*,?\s*>", re.DOTALL)
_ATOMIC: Final = re.compile(r"atomic\s*<\s*[iu]32\s*>")
_VECTOR: Final = re.compile(r"vec([234])(?:\s*<\s*(\w+)\s*>|([fhiu]))")
_BYTES: Final = {"f32": 4, "i32": 4, "u32": 4, "f16": 2, "f": 4, "i": 4, "u": 4, "h": 2, "bool": 4}
_COMMENT_MARKS: Final = re.compile(r"//|/\*|\*/|\n")
_NOT_NEWLINE: Final = re.compile(r"[^\n]")
_MAX_TYPE: Final = 2000
_MAX_NESTING: Final = 16
_MAX_DIGITS: Final = 12
_MAX_TEXT: Final = 4 << 20


@dataclass(frozen=True)
class ModuleText:
    """A module's text and the declarations in it.

    Attributes
    ----------
    text
        The complete module, without a prologue.
    qualifiers
        Start and end of ``<storage, read>`` in the text, per storage binding.
    symbol
        Its entry point.
    access
        Per storage binding ``read`` or ``read_write``, in order.
    scalars
        Dtypes of the scalars, in order.
    packs_grid
        Whether the last member of the uniform struct takes the grid's x.
    block
        Its workgroup size.
    workgroup_bytes
        Memory of its workgroup variables.
    asks_length
        Whether it asks how long a binding is.
    """

    text: str
    qualifiers: tuple[tuple[int, int], ...]
    symbol: str
    access: tuple[str, ...]
    scalars: tuple[str, ...]
    packs_grid: bool
    block: tuple[int, int, int]
    workgroup_bytes: int
    asks_length: bool

    @property
    def has_uniform(self) -> bool:
        """Whether there is a binding behind those of the buffers."""
        return bool(self.scalars) or self.packs_grid

    def written(self, bindings: frozenset[int]) -> str:
        """The text with these `read` bindings made `read_write`."""
        text = self.text
        for binding in sorted(bindings, key=lambda each: self.qualifiers[each], reverse=True):
            start, end = self.qualifiers[binding]
            text = f"{text[:start]}<storage, {READ_WRITE}>{text[end:]}"
        return text


def read_module(code: bytes) -> ModuleText:
    """Read a module of one entry point.

    Raises
    ------
    CompileError
        If it is not UTF-8 text, or has a form that this platform's modules do not have.
    """
    try:
        text = code.decode()
    except UnicodeDecodeError:
        raise CompileError("WGSL must be UTF-8 text") from None
    if len(text) > _MAX_TEXT:
        raise CompileError(f"expected a module of {_MAX_TEXT} characters at most, got {len(text)}")
    bare = without_comments(text)
    if re.search(r"^[ \t]*enable\b", bare, re.MULTILINE):
        raise CompileError(
            "the module has an enable line; name the feature in Kernel.features instead, for which "
            "the driver adds the line"
        )
    symbol, block = _entry(bare)
    bindings, uniform = _bindings(bare)
    scalars, packs_grid = _scalars(bare, uniform) if uniform else ((), False)
    return ModuleText(
        text,
        tuple(binding.qualifier for binding in bindings),
        symbol,
        tuple(binding.access for binding in bindings),
        scalars,
        packs_grid,
        block,
        _workgroup_bytes(bare),
        "arrayLength" in bare,
    )


def without_comments(text: str) -> str:
    """`text` with blanks in place of comments, so that lines and columns stay."""
    pieces: list[str] = []
    kept, depth, line = 0, 0, False
    for mark in _COMMENT_MARKS.finditer(text):
        before = depth or line
        if mark[0] == "\n":
            line = False
        elif line:
            continue
        elif mark[0] == "//":
            line = not depth
        else:
            depth = depth + 1 if mark[0] == "/*" else max(0, depth - 1)
        if bool(before) != bool(depth or line):
            # A comment's closing mark belongs to it; a newline ends one without belonging to it.
            at = mark.end() if mark[0] == "*/" else mark.start()
            piece = text[kept:at]
            pieces.append(_NOT_NEWLINE.sub(" ", piece) if before else piece)
            kept = at
    rest = text[kept:]
    return "".join(pieces) + (_NOT_NEWLINE.sub(" ", rest) if depth or line else rest)


@dataclass(frozen=True)
class _Binding:
    binding: int
    name: str
    access: str
    kind: str
    qualifier: tuple[int, int]


def _entry(text: str) -> tuple[str, tuple[int, int, int]]:
    entries = _ENTRY.findall(text)
    if len(entries) != 1 or len(_ANY_ENTRY.findall(text)) != 1:
        raise CompileError(
            "expected one entry point, written `@compute @workgroup_size(x, y, z) fn name(`; the "
            f"module has {len(entries)}"
        )
    sizes, name = entries[0][:2] if entries[0][1] else entries[0][2:]
    parts = [part for part in sizes.split(",") if part.strip()]
    constants = dict(_CONSTANT.findall(text))
    extents = [_integer(part.strip(), constants) for part in parts]
    known = [extent for extent in extents if extent]
    if not 1 <= len(parts) <= 3 or len(known) != len(parts):
        raise CompileError(
            f"{name}: expected one to three numbers above 0 in @workgroup_size, "
            f"got ({sizes.strip()[:80]})"
        )
    x, y, z = ([*known, 1, 1])[:3]
    return name, (x, y, z)


def _integer(text: str, constants: Mapping[str, str]) -> int | None:
    match = _INTEGER.fullmatch(constants.get(text, text))
    return int(match[1]) if match and len(match[1]) <= _MAX_DIGITS else None


def _bindings(text: str) -> tuple[list[_Binding], _Binding | None]:
    """The storage bindings in order, and the uniform one."""
    matches = list(_BINDING.finditer(text))
    # A declaration in any other form would be a binding that is never set.
    if len(_ANY_BINDING.findall(text)) != 2 * len(matches):
        raise CompileError(
            "expected every binding in the form `@group(0) @binding(0) var<storage, read> name : "
            "type;` or `var<uniform>`; the module has one in another form"
        )
    buffers: list[_Binding] = []
    uniforms: list[_Binding] = []
    for match in matches:
        group, binding, _, space, access, name, kind = match.groups()
        if int(group) != 0:
            raise CompileError(f"{name}: expected every binding in group 0, not in {group}")
        if space == "uniform" and access:
            raise CompileError(f"{name}: a uniform binding has no {access!r}")
        (buffers if space == "storage" else uniforms).append(
            _Binding(int(binding), name, access or READ, kind.strip(), match.span(3))
        )
    buffers.sort(key=lambda each: each.binding)
    numbers = [each.binding for each in (*buffers, *uniforms)]
    if len(uniforms) > 1 or numbers != list(range(len(numbers))):
        raise CompileError(
            "expected storage bindings 0, 1, ... and behind them one uniform binding at most; the "
            f"module has them at {[each.binding for each in buffers]} and uniform ones at "
            f"{[each.binding for each in uniforms]}"
        )
    return buffers, uniforms[0] if uniforms else None


def _scalars(text: str, uniform: _Binding) -> tuple[tuple[str, ...], bool]:
    kind = uniform.kind
    structs = re.findall(_STRUCT.format(re.escape(kind)), text)
    if len(structs) != 1:
        raise CompileError(f"expected a struct {kind} of 4-byte scalars for the uniform binding")
    names, types = [], []
    for member in filter(None, (part.strip() for part in structs[0].split(","))):
        match = _MEMBER.fullmatch(member)
        if match is None or match[2] not in SCALARS:
            raise CompileError(
                f"struct {kind}: expected members of {', '.join(SCALARS)}, got {member[:80]!r}"
            )
        names.append(match[1])
        types.append(SCALARS[match[2]])
    if not names:
        raise CompileError(f"struct {kind} has no members")
    if PACKED_GRID not in names:
        return tuple(types), False
    if names.index(PACKED_GRID) != len(names) - 1 or types[-1] != "uint32":
        raise CompileError(f"struct {kind}: expected `{PACKED_GRID}: u32` as its last member")
    return tuple(types[:-1]), True


def _workgroup_bytes(text: str) -> int:
    """Bytes of all workgroup variables: the compiler lets more pass than the device has."""
    constants, aliases = dict(_CONSTANT.findall(text)), dict(_ALIAS.findall(text))
    found = _WORKGROUP.findall(text)
    if len(_ANY_WORKGROUP.findall(text)) != len(found):
        raise CompileError("expected every workgroup variable as `var<workgroup> name : type;`")
    total = 0
    for name, kind in found:
        size = _bytes(kind.strip(), constants, aliases)
        if size is None:
            raise CompileError(
                f"workgroup variable {name}: expected scalars, vectors or arrays of them with "
                f"extents that are numbers, got {kind.strip()[:80]!r}"
            )
        total += size
    return total


def _bytes(kind: str, constants: Mapping[str, str], aliases: Mapping[str, str]) -> int | None:
    count = 1
    for _ in range(_MAX_NESTING):
        if kind in aliases:
            kind = aliases[kind].strip()
        elif len(kind) <= _MAX_TYPE and (array := _ARRAY.fullmatch(kind)):
            extent = _integer(array[2], constants)
            if extent is None:
                return None
            count, kind = count * extent, array[1].strip()
        elif kind in _BYTES or _ATOMIC.fullmatch(kind):
            return count * _BYTES.get(kind, 4)
        elif vector := _VECTOR.fullmatch(kind):
            scalar = vector[2] or vector[3]
            scalar = aliases.get(scalar, scalar).strip()
            # A vector of three takes the room of four.
            lanes = {"2": 2, "3": 4, "4": 4}[vector[1]]
            return count * lanes * _BYTES[scalar] if scalar in _BYTES else None
        else:
            return None
    return None
