"""What a SPIR-V module says of its kernel: bindings, push constants, threads, capabilities."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tapml_targets.errors import CompileError

GRID: Final = "tapml_grid_x"

# What a kernel may use, by SPIR-V's numbers: of what a device may lack, with the feature.
CAPABILITIES: Final = {
    0: "",  # Matrix
    1: "",  # Shader
    9: "float16",  # Float16
    10: "float64",  # Float64
    11: "int64",  # Int64
    61: "subgroups",  # GroupNonUniform
    62: "subgroups",  # GroupNonUniformVote
    63: "subgroups",  # GroupNonUniformArithmetic
    64: "subgroups",  # GroupNonUniformBallot
    65: "subgroups",  # GroupNonUniformShuffle
    66: "subgroups",  # GroupNonUniformShuffleRelative
    4433: "int16",  # StorageBuffer16BitAccess
    4448: "int8",  # StorageBuffer8BitAccess
}

_MAGIC: Final = 0x07230203
_HEADER_WORDS: Final = 5
_PUSH_CONSTANT: Final = 9
_STORAGE_CLASSES: Final = (2, 12)
_FORMATS: Final = {
    ("int", 32, 1): "i", ("int", 32, 0): "I", ("int", 64, 1): "q", ("int", 64, 0): "Q",
    ("float", 32, 0): "f", ("float", 64, 0): "d",
}  # fmt: skip


@dataclass(frozen=True)
class PushConstant:
    """A number that a kernel is given: where it lies, and its form for :mod:`struct`."""

    name: str
    offset: int
    format: str


@dataclass(frozen=True)
class Interface:
    """What a kernel takes.

    Attributes
    ----------
    read_only
        Per binding, in order, whether the kernel never writes it.
    scalars
        Its numbers in order, without :data:`GRID`.
    grid
        Where the number of blocks along x is written; None for a kernel that does not ask.
    pushed_bytes
        Bytes of all push constants.
    block
        Threads of a workgroup (x, y, z).
    capabilities
        SPIR-V's numbers of what it uses.
    """

    read_only: tuple[bool, ...]
    scalars: tuple[PushConstant, ...]
    grid: PushConstant | None
    pushed_bytes: int
    block: tuple[int, int, int]
    capabilities: frozenset[int]


@dataclass
class _Module:
    """What is collected in one walk over a module; `logical`: there are no pointers as numbers."""

    logical: bool = False
    capabilities: set[int] = field(default_factory=set)
    block: tuple[int, int, int] = (1, 1, 1)
    bindings: dict[int, int] = field(default_factory=dict)
    decorated: set[int] = field(default_factory=set)
    member_names: dict[tuple[int, int], str] = field(default_factory=dict)
    offsets: dict[tuple[int, int], int] = field(default_factory=dict)
    read_only_members: set[tuple[int, int]] = field(default_factory=set)
    numbers: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    structs: dict[int, tuple[int, ...]] = field(default_factory=dict)
    pointers: dict[int, int] = field(default_factory=dict)
    variables: list[tuple[int, int, int]] = field(default_factory=list)


def read_interface(code: bytes, kernel: str) -> Interface:
    """Read what a module with one entry point takes.

    Raises
    ------
    CompileError
        If it is no SPIR-V, or takes what this platform does not give. A driver believes the
        SPIR-V it is given; this is no full check of it.
    """
    module = _Module()
    try:
        for operation, words in _instructions(code, kernel):
            _note(module, operation, words)
        return _interface(module, kernel)
    except KeyError as error:
        raise CompileError(
            f"kernel {kernel!r}: its SPIR-V names {error}, which it does not declare"
        ) from None


def _interface(module: _Module, kernel: str) -> Interface:
    if not module.logical:
        raise CompileError(f"kernel {kernel!r}: its SPIR-V has pointers, which no kernel is given")
    unknown = module.capabilities - CAPABILITIES.keys()
    if unknown:
        raise CompileError(
            f"kernel {kernel!r}: its SPIR-V has the capability {min(unknown)}, which is not among "
            f"those that a device is opened with: {sorted(CAPABILITIES)}"
        )
    bound: dict[int, bool] = {}
    pushed: tuple[int, ...] = ()
    owner = 0
    for pointer, variable, storage in module.variables:
        pointee = module.pointers[pointer]
        if variable in module.bindings and storage in _STORAGE_CLASSES:
            parts = range(len(module.structs.get(pointee, ())))
            read_only = variable in module.decorated or (
                len(parts) > 0 and {(pointee, each) for each in parts} <= module.read_only_members
            )
            # Two variables may name one binding.
            binding = module.bindings[variable]
            bound[binding] = bound.get(binding, True) and read_only
        elif storage == _PUSH_CONSTANT:
            pushed, owner = module.structs[pointee], pointee
    if sorted(bound) != list(range(len(bound))):
        raise CompileError(
            f"kernel {kernel!r} binds {sorted(bound)}: bindings must count from 0 in set 0"
        )
    members = [_member(module, owner, place, kind, kernel) for place, kind in enumerate(pushed)]
    grid = next((each for each in members if each.name == GRID), None)
    return Interface(
        tuple(bound[binding] for binding in sorted(bound)),
        tuple(each for each in members if each is not grid),
        grid,
        max((each.offset + struct.calcsize(each.format) for each in members), default=0),
        module.block,
        frozenset(module.capabilities),
    )


def _member(module: _Module, owner: int, place: int, kind: int, kernel: str) -> PushConstant:
    name = module.member_names.get((owner, place), f"number {place}")
    form = _FORMATS.get(module.numbers.get(kind, ("", 0, 0)))
    if form is None:
        raise CompileError(
            f"kernel {kernel!r}: the push constant {name!r} is no number of 32 or 64 bits"
        )
    return PushConstant(name, module.offsets[owner, place], form)


def _instructions(code: bytes, kernel: str) -> Iterator[tuple[int, tuple[int, ...]]]:
    if len(code) % 4 or len(code) < 4 * _HEADER_WORDS:
        raise CompileError(f"kernel {kernel!r}: {len(code)} bytes are no SPIR-V module")
    words = struct.unpack(f"<{len(code) // 4}I", code)
    if words[0] != _MAGIC:
        raise CompileError(f"kernel {kernel!r}: a SPIR-V module begins with {_MAGIC:#x}")
    at = _HEADER_WORDS
    while at < len(words):
        count, operation = words[at] >> 16, words[at] & 0xFFFF
        if not 0 < count <= len(words) - at:
            raise CompileError(f"kernel {kernel!r}: its SPIR-V ends inside an instruction")
        yield operation, words[at + 1 : at + count]
        at += count


def _note(module: _Module, operation: int, words: tuple[int, ...]) -> None:
    """Note what one instruction says, by its number in SPIR-V's specification."""
    match operation, words:
        case (17, (capability,)):  # OpCapability
            module.capabilities.add(capability)
        case (14, (0, _)):  # OpMemoryModel Logical
            module.logical = True
        case (16, (_, 17, x, y, z)):  # OpExecutionMode LocalSize
            module.block = x, y, z
        case (6, (owner, place, *text)):  # OpMemberName
            raw = struct.pack(f"<{len(text)}I", *text)
            module.member_names[owner, place] = raw.partition(b"\0")[0].decode(errors="replace")
        case (71, (target, 33, binding)):  # OpDecorate Binding
            module.bindings[target] = binding
        case (71, (target, 24)):  # OpDecorate NonWritable
            module.decorated.add(target)
        case (72, (owner, place, 24)):  # OpMemberDecorate NonWritable
            module.read_only_members.add((owner, place))
        case (72, (owner, place, 35, offset)):  # OpMemberDecorate Offset
            module.offsets[owner, place] = offset
        case (21, (result, width, signed)):  # OpTypeInt
            module.numbers[result] = "int", width, signed
        case (22, (result, width, *_)):  # OpTypeFloat
            module.numbers[result] = "float", width, 0
        case (30, (result, *members)):  # OpTypeStruct
            module.structs[result] = tuple(members)
        case (32, (result, _, pointee)):  # OpTypePointer
            module.pointers[result] = pointee
        case (59, (pointer, result, storage, *_)):  # OpVariable
            module.variables.append((pointer, result, storage))


def pack(interface: Interface, values: list[Any], grid_x: int, kernel: str) -> bytes:
    """The push constants with these numbers.

    Raises
    ------
    CompileError
        If a number does not fit.
    """
    data = bytearray(interface.pushed_bytes)
    for constant, value in zip(interface.scalars, values, strict=True):
        try:
            struct.pack_into(f"<{constant.format}", data, constant.offset, value)
        except struct.error as error:
            raise CompileError(f"kernel {kernel!r}: {constant.name!r} = {value}: {error}") from None
    if interface.grid is not None:
        struct.pack_into("<I", data, interface.grid.offset, grid_x)
    return bytes(data)
