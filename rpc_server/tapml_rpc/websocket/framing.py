"""Frames of RFC 6455: their heads, their order, their masks."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from tapml_rpc.websocket.frames import MAX_MESSAGE_BYTES
from tapml_targets.errors import ProtocolError

try:
    from websockets.speedups import apply_mask
except ImportError:  # a board without a compiler, and no wheel for it
    from websockets.utils import apply_mask

CONTINUATION: Final = 0
TEXT: Final = 1
BINARY: Final = 2
CLOSE: Final = 8
PING: Final = 9
PONG: Final = 10
FIN: Final = 0x80
MASKED: Final = 0x80
KEY_BYTES: Final = 4
_RESERVED: Final = 0x70
_MAX_CONTROL_BYTES: Final = 125
_EXTENDED: Final = {126: 2, 127: 8}


class TooLongError(ProtocolError):
    """A message is over its bound."""


def frame_head(opcode: int, nbytes: int, key: bytes = b"", *, final: bool = True) -> bytes:
    """The head of a frame with `nbytes` of payload; `key` is its mask, empty for none."""
    first, second = (FIN if final else 0) | opcode, MASKED if key else 0
    if nbytes < 126:
        return struct.pack("!BB", first, second | nbytes) + key
    if nbytes < 1 << 16:
        return struct.pack("!BBH", first, second | 126, nbytes) + key
    return struct.pack("!BBQ", first, second | 127, nbytes) + key


def head_bytes(data: bytearray | memoryview, start: int, end: int) -> int:
    """Bytes of the head in data[start:end], as far as they are known: at least two."""
    if end - start < 2:
        return 2
    second = data[start + 1]
    return 2 + _EXTENDED.get(second & 0x7F, 0) + (KEY_BYTES if second & MASKED else 0)


def payload_bytes(data: bytearray | memoryview, start: int) -> int:
    """The payload's bytes, as the complete head at `start` says."""
    length = data[start + 1] & 0x7F
    extended = _EXTENDED.get(length, 0)
    return int.from_bytes(data[start + 2 : start + 2 + extended]) if extended else length


class FrameOrder:
    """Checks the heads of one direction; `message_bytes` are those of the message under way.

    `masked`: the peer masks, as clients do. Raises ProtocolError, TooLongError for a message of
    over `most_bytes`.
    """

    def __init__(self, *, masked: bool, most_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.message_bytes = 0
        self._masked = masked
        self._most_bytes = most_bytes
        self._open = False

    def check(self, first: int, second: int, nbytes: int) -> None:
        """Check a head: its first two bytes, and the bytes of its payload."""
        opcode, final = first & 0x0F, bool(first & FIN)
        if first & _RESERVED or bool(second & MASKED) != self._masked:
            raise ProtocolError(
                f"a frame with reserved bits, or {'without' if self._masked else 'with'} a mask"
            )
        if opcode >= CLOSE:
            if opcode > PONG:
                raise ProtocolError(f"a frame of unknown kind {opcode}")
            if nbytes > _MAX_CONTROL_BYTES or not final:
                raise ProtocolError("a control frame that is fragmented or has over 125 bytes")
            return
        if opcode > BINARY or (opcode == CONTINUATION) != self._open:
            raise ProtocolError("a frame of an unknown kind, or out of turn")
        self.message_bytes = nbytes + (self.message_bytes if self._open else 0)
        if self.message_bytes > self._most_bytes:
            raise TooLongError(f"a message of over {self._most_bytes} bytes")
        self._open = not final


class Mask:
    """Masks consecutive pieces of one payload, or takes their mask off: the same operation."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def turn(self, piece: bytes | memoryview) -> bytes:
        """The next piece, turned."""
        turned = apply_mask(piece, self._key)
        begun = len(piece) % KEY_BYTES
        self._key = self._key[begun:] + self._key[:begun]
        return turned


class Piece(NamedTuple):
    """A part of a frame as it came.

    `first` is the first byte of the frame; `head` the frame's head with its first piece, then
    empty. `payload` may have a mask. `left` bytes of the frame are still to come.
    """

    first: int
    head: bytes
    payload: memoryview
    left: int


class FrameReader:
    """Parses one direction, however its bytes are cut; the arguments are those of FrameOrder."""

    def __init__(self, *, masked: bool, most_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._order = FrameOrder(masked=masked, most_bytes=most_bytes)
        self._head = bytearray()
        self._first = 0
        self._missing = 0

    @property
    def between(self) -> bool:
        """Whether no frame has come in part."""
        return not (self._head or self._missing)

    def feed(self, data: memoryview) -> Iterator[Piece]:
        """The parts of frames in `data`; raises ProtocolError for bytes that form no frame."""
        position = 0
        while position < len(data):
            head = b""
            if not self._missing:
                wanted = head_bytes(self._head, 0, len(self._head)) - len(self._head)
                self._head += data[position : position + wanted]
                position += min(wanted, len(data) - position)
                if len(self._head) < head_bytes(self._head, 0, len(self._head)):
                    continue
                head = bytes(self._head)
                self._first, self._missing = head[0], payload_bytes(self._head, 0)
                self._order.check(head[0], head[1], self._missing)
                self._head.clear()
            payload = data[position : position + self._missing]
            position += len(payload)
            self._missing -= len(payload)
            yield Piece(self._first, head, payload, self._missing)
