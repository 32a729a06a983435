"""The wire form of a Library.

A frame of fixed size, a msgpack header, then the modules' code, one after the other::

    "TAPMLLIB"   8 bytes
    version      uint32, little endian
    header size  uint32, little endian
    header       msgpack: [target, metadata, modules, kernels, operators, entries];
                 a module is [dialect, kind, architecture, bytes of code, build options]
    code         the modules' bytes in order

Code stays outside msgpack so that a header is small enough to be bounded tightly: decoded msgpack
takes up to sixty times its bytes. Named things are lists sorted by name, which makes the form
canonical: equal Libraries have equal bytes and therefore equal hashes.
"""

from __future__ import annotations

import hashlib
import struct
from itertools import accumulate
from typing import Annotated, Any, Final

import msgpack
import msgspec
from msgspec.structs import replace

from tapml_targets.errors import ProtocolError
from tapml_targets.expression import Expression
from tapml_targets.library import (
    BufferArgument,
    CodeModule,
    EntryProgram,
    Kernel,
    Launch,
    Library,
    ModuleKind,
    OperatorProgram,
    with_launches,
)
from tapml_targets.library_check import check_library

MAGIC: Final = b"TAPMLLIB"
VERSION: Final = 3
MAX_HEADER_BYTES: Final = 16 << 20
MAX_LIBRARY_BYTES: Final = 1 << 30
MAX_METADATA: Final = 1024

_FRAME: Final = struct.Struct("<8sII")


class _Module(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    dialect: str
    kind: ModuleKind
    architecture: str
    nbytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_LIBRARY_BYTES)]
    options: tuple[str, ...]


class _OpenBuffer(msgspec.Struct, array_like=True, tag="buffer"):
    name: str
    byte_offset: Expression


class _Header(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    target: str
    metadata: Annotated[tuple[tuple[str, str], ...], msgspec.Meta(max_length=MAX_METADATA)]
    modules: tuple[_Module, ...]
    kernels: tuple[Kernel, ...]
    operators: tuple[OperatorProgram, ...]
    entries: tuple[EntryProgram, ...]


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
    try:
        packed = _header(library)
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
            f"a Library of version {version}, and this tapml reads version {VERSION}: compile it "
            "again with this tapml, or install the same tapml on both sides"
        )
    code = view[_FRAME.size :]
    if header_bytes > MAX_HEADER_BYTES or header_bytes > len(code):
        raise ProtocolError(f"a Library's header cannot have {header_bytes} bytes here")
    try:
        header = msgspec.convert(_unpacked(code[:header_bytes]), _Header)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a Library's header is damaged: {error}") from None
    library = Library(
        target=header.target,
        modules=_modules(header.modules, code[header_bytes:]),
        kernels={each.name: each for each in header.kernels},
        operators={each.name: each for each in header.operators},
        entries={each.name: each for each in header.entries},
        metadata=dict(header.metadata),
    )
    check_library(library)
    if _header(library) != code[:header_bytes]:
        raise ProtocolError(
            "a Library's header is not as `pack` writes it: named items must be sorted, none be "
            "there twice, and no field be left out"
        )
    return library


def _unpacked(packed: memoryview) -> Any:
    try:
        # Maps, byte strings and extension types do not occur: a length of zero refuses them.
        return msgpack.unpackb(packed, use_list=False, max_map_len=0, max_bin_len=0, max_ext_len=0)
    except (ValueError, UnicodeDecodeError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(f"a Library's header is not msgpack: {error}") from None


def _modules(modules: tuple[_Module, ...], code: memoryview) -> tuple[CodeModule, ...]:
    ends = tuple(accumulate(each.nbytes for each in modules))
    if (ends[-1] if ends else 0) != len(code):
        raise ProtocolError(
            f"the modules of a Library have {ends[-1] if ends else 0} bytes, got {len(code)}"
        )
    return tuple(
        CodeModule(
            each.dialect,
            bytes(code[end - each.nbytes : end]),
            each.options,
            each.kind,
            each.architecture,
        )
        for each, end in zip(modules, ends, strict=True)
    )


def plain_text(value: object) -> str:
    """A text of TVM or PyTorch, which is of a subclass that msgspec does not encode.

    Raises
    ------
    TypeError
        If it is no text.
    """
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"expected plain data, got {type(value).__name__}")


def _header(library: Library) -> bytes:
    header = _Header(
        library.target,
        tuple(sorted(library.metadata.items())),
        tuple(
            _Module(each.dialect, each.kind, each.architecture, len(each.code), each.options)
            for each in library.modules
        ),
        tuple(kernel for _, kernel in sorted(library.kernels.items())),
        tuple(
            replace(program, statements=with_launches(program.statements, _as_written))
            for _, program in sorted(library.operators.items())
        ),
        tuple(entry for _, entry in sorted(library.entries.items())),
    )
    return msgspec.msgpack.encode(header, enc_hook=plain_text)


def _as_written(launch: Launch) -> Launch:
    """A launch whose buffers that go to their end have no size, not even none."""
    arguments: Any = tuple(
        _OpenBuffer(each.name, each.byte_offset)
        if isinstance(each, BufferArgument) and each.nbytes is None
        else each
        for each in launch.arguments
    )
    return replace(launch, arguments=arguments)
