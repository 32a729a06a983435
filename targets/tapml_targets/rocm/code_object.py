"""What AMD's code objects say of their kernels: an ELF note that is a msgpack map.

The layout is the "Code Object V3 Metadata" of LLVM's "User Guide for AMDGPU Backend", which later
versions keep.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

import msgpack

_ELF: Final = b"\x7fELF"
_NOTES: Final = 7  # SHT_NOTE
_METADATA: Final = 32  # NT_AMDGPU_METADATA
_OWNER: Final = b"AMDGPU\0"
_MOST_BYTES: Final = 16 << 20


def argument_sizes(code: bytes) -> dict[str, tuple[int, ...]]:
    """The bytes of each argument of each kernel, by its symbol.

    Returns
    -------
    dict
        Without what the compiler adds to the arguments of the text; empty where the code does not
        say: the device's own loader judges it then.
    """
    # A bundle holds the object behind a head of its own.
    begin = code.find(_ELF)
    try:
        metadata = next(_metadata(memoryview(code)[begin:]), None) if begin >= 0 else None
        return {
            kernel[".name"]: tuple(
                int(each[".size"])
                for each in kernel.get(".args", ())
                if not each[".value_kind"].startswith("hidden_")
            )
            for kernel in (metadata or {}).get("amdhsa.kernels", ())
        }
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return {}


def _metadata(elf: memoryview) -> Iterator[dict[str, Any]]:
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count = struct.unpack_from("<HH", elf, 58)
    for index in range(count):
        kind, _, _, begin, nbytes = struct.unpack_from("<IQQQQ", elf, table + index * size + 4)
        if kind != _NOTES or nbytes > _MOST_BYTES:
            continue
        at, end = begin, begin + nbytes
        while at + 12 <= end:
            owner, length, what = struct.unpack_from("<III", elf, at)
            text = at + 12
            data = text + (owner + 3) // 4 * 4
            if what == _METADATA and bytes(elf[text : text + owner]) == _OWNER:
                yield msgpack.unpackb(elf[data : data + length])
            at = data + (length + 3) // 4 * 4
