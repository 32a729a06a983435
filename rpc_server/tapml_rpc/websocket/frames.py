"""One binary WebSocket message: a header and at most one chunk, each where it can be used in place.

::

    header length (4 bytes, little endian) | header | zeros up to a multiple of 8 | chunk

Without a chunk the message ends with the header. There is one encoding of every message, so that
what a peer sends is either that or refused.
"""

from __future__ import annotations

import logging
import struct
from typing import Final

from tapml_rpc import wire
from tapml_targets.errors import ProtocolError

SUBPROTOCOL: Final = "tapml.1"
TOKEN_PREFIX: Final = "tapml-token."  # noqa: S105 - the prefix of a token
"""Prefix of a token that is offered as a subprotocol: a browser cannot set headers."""
CONTROL_PATH: Final = "/control"
DATA_PATH: Final = "/data"
MAX_MESSAGE_BYTES: Final = wire.MAX_HEADER_BYTES + wire.MAX_CHUNK_BYTES + 16

LOGGER: Final = logging.getLogger("tapml_rpc.websocket")
LOGGER.setLevel(logging.CRITICAL)  # the `websockets` package would print tokens, and peers' faults
_LENGTH: Final = struct.Struct("<I")
_PADDING: Final = tuple(bytes(count) for count in range(wire.CHUNK_ALIGNMENT))
_NO_CHUNK: Final = memoryview(b"")


def head(packed: bytes, chunk_bytes: int) -> bytes:
    """The length, the packed header and the zeros before the chunk; raises ProtocolError."""
    wire.check_chunk(chunk_bytes)
    length = _LENGTH.pack(len(packed))
    if not chunk_bytes:
        return length + packed
    end = _LENGTH.size + len(packed)
    return b"".join((length, packed, _PADDING[wire.aligned(end) - end]))


def join(packed: bytes, chunk: bytes | memoryview = b"") -> bytes:
    """A complete message; raises as :func:`head` does."""
    return b"".join((head(packed, len(chunk)), chunk))


def split(message: bytes | memoryview) -> tuple[memoryview, memoryview]:
    """The packed header and the chunk of a message, not copied; raises ProtocolError."""
    view = memoryview(message)
    size = len(view)
    if size < _LENGTH.size:
        raise ProtocolError(
            f"a message of {size} bytes; expected a header's length in 4 bytes and the header"
        )
    (length,) = _LENGTH.unpack_from(view)
    if length > wire.MAX_HEADER_BYTES:
        raise ProtocolError(
            f"a header of {length} bytes; at most {wire.MAX_HEADER_BYTES} are allowed"
        )
    end = _LENGTH.size + length
    if end > size:
        raise ProtocolError(
            f"a header of {length} bytes is announced, {size - _LENGTH.size} follow"
        )
    if end == size:
        return view[_LENGTH.size :], _NO_CHUNK
    start = wire.aligned(end)
    if start >= size:
        raise ProtocolError(f"{size - end} bytes of padding without a chunk; leave the padding out")
    if view[end:start] != _PADDING[start - end]:
        raise ProtocolError("the bytes between header and chunk must be zero")
    wire.check_chunk(size - start)
    return view[_LENGTH.size : end], view[start:]
