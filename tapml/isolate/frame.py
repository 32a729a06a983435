"""Messages between the pool, its server and the children: a length, then msgpack."""

from __future__ import annotations

import struct
from typing import Any, Final

import msgpack

from tapml_targets.errors import ProtocolError

LENGTH: Final = struct.Struct("<Q")
MAX_BYTES: Final = 1 << 30


def encode(message: object) -> bytes:
    """One message as bytes."""
    body: bytes = msgpack.packb(message, use_bin_type=True)
    return LENGTH.pack(len(body)) + body


class Decoder:
    """Gives messages out of a stream of bytes that arrives in pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Add bytes and take out every complete message.

        Raises
        ------
        ProtocolError
            If a message is longer than ``MAX_BYTES`` or is not msgpack.
        """
        self._buffer += data
        messages = []
        while len(self._buffer) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._buffer)
            if size > MAX_BYTES:
                raise ProtocolError(f"a message of {size} bytes; at most {MAX_BYTES} are allowed")
            end = LENGTH.size + size
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[LENGTH.size : end])
            del self._buffer[:end]
            try:
                messages.append(msgpack.unpackb(body, raw=False, max_bin_len=MAX_BYTES))
            except (ValueError, msgpack.UnpackException) as error:
                raise ProtocolError(f"a message is not msgpack: {error}") from error
        return messages
