"""The wire form of a Library.

A frame of fixed size, a msgpack header, then the modules' code, one after the other::

    "TAPMLLIB"   8 bytes
    version      uint32, little endian
    header size  uint32, little endian
    header       msgpack: [target, metadata, modules, kernels, operators, entries];
                 a module is [dialect, bytes of code, build options]
    code         the modules' bytes in order

Code stays outside msgpack so that a header is small enough to be bounded tightly: decoded msgpack
takes up to sixty times its bytes. Named things are lists sorted by name, which makes the form
canonical: equal Libraries have equal bytes and therefore equal hashes.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, Final

import msgpack

from tapml_targets.errors import ProtocolError
from tapml_targets.expression import Expression
from tapml_targets.library import (
    Argument,
    Bind,
    BufferArgument,
    Condition,
    EntryProgram,
    Kernel,
    Launch,
    Library,
    Loop,
    OperatorProgram,
    Parameter,
    ScalarArgument,
    Statement,
    TensorArgument,
)
from tapml_targets.library_check import check_library
from tapml_targets.library_decode import decode_header

MAGIC: Final = b"TAPMLLIB"
VERSION: Final = 2
MAX_HEADER_BYTES: Final = 16 << 20
MAX_LIBRARY_BYTES: Final = 1 << 30

_FRAME: Final = struct.Struct("<8sII")


def library_hash(data: bytes | bytearray | memoryview) -> str:
    """The SHA-256 of packed bytes in hexadecimal: the name of a Library on the wire."""
    return hashlib.sha256(data).hexdigest()


def pack(library: Library) -> bytes:
    """The bytes of `library`; equal Libraries give equal bytes.

    Raises
    ------
    ProtocolError
        If the Library is inconsistent or too large.
    """
    check_library(library)
    header = [
        library.target,
        sorted([name, text] for name, text in library.metadata.items()),
        [[m.dialect, len(m.code), list(m.options)] for m in library.modules],
        [_kernel(library.kernels[name]) for name in sorted(library.kernels)],
        [_operator(library.operators[name]) for name in sorted(library.operators)],
        [_entry(library.entries[name]) for name in sorted(library.entries)],
    ]
    try:
        packed: bytes = msgpack.packb(header, use_bin_type=True)
    except (OverflowError, ValueError) as error:
        raise ProtocolError(f"the Library cannot be packed: {error}") from None
    size = _FRAME.size + len(packed) + sum(len(module.code) for module in library.modules)
    if len(packed) > MAX_HEADER_BYTES or size > MAX_LIBRARY_BYTES:
        raise ProtocolError(
            f"the Library takes {size} bytes with a header of {len(packed)}; "
            f"at most {MAX_LIBRARY_BYTES} and {MAX_HEADER_BYTES} are allowed"
        )
    frame = _FRAME.pack(MAGIC, VERSION, len(packed))
    return b"".join((frame, packed, *(module.code for module in library.modules)))


def unpack(data: bytes | bytearray | memoryview) -> Library:
    """Read packed bytes back, trusting nothing in them.

    Raises
    ------
    ProtocolError
        If the bytes are no Library of this version, are cut short, or break a rule of
        :mod:`tapml_targets.library_check`.
    """
    view = memoryview(data).cast("B")
    if len(view) < _FRAME.size or len(view) > MAX_LIBRARY_BYTES:
        raise ProtocolError(
            f"expected a Library of {_FRAME.size} to {MAX_LIBRARY_BYTES} bytes, got {len(view)}"
        )
    magic, version, header_bytes = _FRAME.unpack_from(view)
    if magic != MAGIC:
        raise ProtocolError(f"not a Library: it begins with {magic!r}, expected {MAGIC!r}")
    if version != VERSION:
        raise ProtocolError(
            f"Library version {version} is not supported, expected {VERSION}; "
            "install the same tapml on both sides"
        )
    code = view[_FRAME.size :]
    if header_bytes > MAX_HEADER_BYTES or header_bytes > len(code):
        raise ProtocolError(f"a Library's header cannot have {header_bytes} bytes here")
    library = decode_header(_header(code[:header_bytes]), code[header_bytes:])
    check_library(library)
    return library


def _header(packed: memoryview) -> Any:
    try:
        # Maps, byte strings and extension types do not occur: a length of zero refuses them.
        return msgpack.unpackb(
            packed, raw=False, use_list=True, max_map_len=0, max_bin_len=0, max_ext_len=0
        )
    except (ValueError, UnicodeDecodeError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(f"a Library's header is not msgpack: {error}") from None


def _kernel(kernel: Kernel) -> list[Any]:
    return [
        kernel.name,
        kernel.symbol,
        kernel.module,
        kernel.threads_per_block,
        kernel.shared_memory_bytes,
        list(kernel.features),
    ]


def _parameters(parameters: tuple[Parameter, ...]) -> list[Any]:
    return [[p.name, list(p.shape), p.dtype, p.role] for p in parameters]


def _operator(operator: OperatorProgram) -> list[Any]:
    return [
        operator.name,
        _parameters(operator.parameters),
        [_statement(statement) for statement in operator.statements],
        [[workspace.name, workspace.nbytes] for workspace in operator.workspaces],
        list(operator.symbols),
    ]


def _entry(entry: EntryProgram) -> list[Any]:
    return [
        entry.name,
        _parameters(entry.parameters),
        [[storage.name, storage.nbytes] for storage in entry.storages],
        [[v.name, v.storage, v.byte_offset, list(v.shape), v.dtype] for v in entry.values],
        [
            [call.operator, list(call.arguments), [[n, value] for n, value in call.symbols]]
            for call in entry.calls
        ],
        list(entry.symbols),
    ]


def _statement(statement: Statement) -> list[Any]:
    match statement:
        case Launch(kernel, arguments, grid, block):
            return ["launch", kernel, [_argument(a) for a in arguments], list(grid), list(block)]
        case Loop(symbol, start, extent, body):
            return ["loop", symbol, start, extent, [_statement(s) for s in body]]
        case Condition(condition, then, otherwise):
            return [
                "if",
                condition,
                [_statement(s) for s in then],
                [_statement(s) for s in otherwise],
            ]
        case Bind(symbol, value):
            return ["bind", symbol, value]


def _argument(argument: Argument) -> list[str | Expression]:
    match argument:
        case BufferArgument(name, byte_offset, nbytes):
            given: list[str | Expression] = ["buffer", name, byte_offset]
            return given if nbytes is None else [*given, nbytes]
        case TensorArgument(name):
            return ["tensor", name]
        case ScalarArgument(value, dtype):
            return ["scalar", value, dtype]
