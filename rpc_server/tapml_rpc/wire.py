"""Headers on the wire: msgpack with every length bounded, and checked access to their fields.

msgpack and never pickle: decoding gives plain data, whatever a peer sends. The unpacker's own
stack bounds the depth (1024 in C, 511 in Python); every field that is read is checked by type.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgpack
import msgspec

from tapml_targets.errors import ProtocolError

VERSION: Final = 3
MAX_HEADER_BYTES: Final = 1 << 20
MAX_CHUNK_BYTES: Final = 4 << 20
MAX_FRAME_BYTES: Final = 2 * MAX_CHUNK_BYTES
"""What a socket of libzmq takes as one frame: CURVE adds to a chunk, and what is too long for the
protocol is refused with a message.
"""
MAX_STRANGER_BYTES: Final = 64 << 10
"""Most bytes of a header on control, or on a data connection without a session yet."""
MAX_STRING_BYTES: Final = 256 << 10
MAX_ARRAY: Final = 65536
MAX_MAP: Final = 4096
MAX_INTEGER: Final = (1 << 63) - 1
CHUNK_ALIGNMENT: Final = 8
BLOBS: Final = "blobs"
"""The feature of a server that keeps blobs for later sessions."""

Header = dict[str, Any]
Record = TypeVar("Record")


def check_chunk(nbytes: int) -> None:
    """Raise ProtocolError for a chunk of more bytes than any peer accepts."""
    if nbytes > MAX_CHUNK_BYTES:
        raise ProtocolError(
            f"a chunk of {nbytes} bytes; at most {MAX_CHUNK_BYTES} are allowed: send it in several "
            "messages"
        )


def pack(header: Header) -> bytes:
    """Encode a header; raises ProtocolError if it is longer than any peer accepts."""
    data: bytes = msgpack.packb(header, use_bin_type=True)
    if len(data) > MAX_HEADER_BYTES:
        raise ProtocolError(
            f"a header of {len(data)} bytes is over the bound of {MAX_HEADER_BYTES}; "
            "send fewer commands per batch"
        )
    return data


def unpack(data: bytes | memoryview) -> Header:
    """Decode a header; raises ProtocolError unless it is a msgpack map within bounds."""
    if len(data) > MAX_HEADER_BYTES:
        raise ProtocolError(f"header of {len(data)} bytes; at most {MAX_HEADER_BYTES} are allowed")
    try:
        header = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_str_len=MAX_STRING_BYTES,
            max_bin_len=MAX_STRING_BYTES,
            max_array_len=MAX_ARRAY,
            max_map_len=MAX_MAP,
            max_ext_len=0,
        )
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise ProtocolError(
            f"header is not msgpack within bounds: {type(error).__name__}: {str(error)[:200]}"
        ) from None
    if type(header) is not dict:
        raise ProtocolError(f"header must be a msgpack map, got {type(header).__name__}")
    return header


def integer(value: object, what: str, bound: int = MAX_INTEGER) -> int:
    """Check an integer from 0 to `bound`; raises ProtocolError, which names `what`."""
    if type(value) is int and 0 <= value <= bound:
        return value
    raise ProtocolError(f"{what} must be an integer from 0 to {bound}, got {str(value)[:60]!r}")


def text(value: object, what: str, bound: int = 4096) -> str:
    """Check a string of at most `bound` characters."""
    if type(value) is str and len(value) <= bound:
        return value
    raise ProtocolError(
        f"{what} must be a string of at most {bound} characters, got {str(value)[:60]!r}"
    )


def octets(value: object, what: str, bound: int = MAX_STRING_BYTES) -> bytes:
    """Check a byte string of at most `bound` bytes."""
    if type(value) is bytes and len(value) <= bound:
        return value
    raise ProtocolError(f"{what} must be at most {bound} bytes, got {str(value)[:60]!r}")


def array(value: object, what: str, bound: int = MAX_ARRAY) -> list[Any]:
    """Check an array of at most `bound` elements."""
    if type(value) is list and len(value) <= bound:
        return value
    raise ProtocolError(
        f"{what} must be an array of at most {bound} elements, got {str(value)[:60]!r}"
    )


def record(value: object, kind: type[Record], what: str) -> Record:
    """Check a map against a dataclass, ignoring what that does not name; raises ProtocolError."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"{what}: {error}") from None


def aligned(position: int) -> int:
    """The next position in a chunk where a payload may start."""
    return (position + CHUNK_ALIGNMENT - 1) // CHUNK_ALIGNMENT * CHUNK_ALIGNMENT
