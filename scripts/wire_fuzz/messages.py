"""Messages with placeholders for a session's own bytes.

A conversation depends only on its seed, so it is the same for every server. Token, epoch and
sequence numbers, which a server assigns, are fixed patterns of the same length that are replaced
when frames are sent.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final, Literal

Socket = Literal["control", "data"]

TOKEN: Final = bytes.fromhex("a7c10f5e55107a9d3b6e2c4488d1f0a1")
OTHER_TOKEN: Final = bytes.fromhex("b7c10f5e55107a9d3b6e2c4488d1f0b2")
EPOCH: Final = bytes.fromhex("e90c4a5d0be1f7c3")
_SEQUENCE_PREFIX: Final = 0x7A51C0DE
_SEQUENCE: Final = re.compile(rb"\xcf" + struct.pack(">I", _SEQUENCE_PREFIX) + rb"(.{4})", re.S)


@dataclass(frozen=True)
class Message:
    """A header, a chunk or none, and the socket it goes to."""

    socket: Socket
    header: dict[str, object]
    chunk: bytes | None = None

    @property
    def name(self) -> str:
        """Its type, for the report."""
        return str(self.header.get("type", "?"))[:20]


@dataclass(frozen=True)
class Shot:
    """Frames as they go out.

    Attributes
    ----------
    socket
        Where they go.
    frames
        One message of the binding; placeholders still in it.
    what
        The message's type and what was done to it, for the report.
    """

    socket: Socket
    frames: tuple[bytes, ...]
    what: str


def sequence(number: int) -> int:
    """A sequence number relative to the session's; always nine bytes on the wire."""
    return (_SEQUENCE_PREFIX << 32) + number


@dataclass(frozen=True)
class Names:
    """The values of the placeholders in one session."""

    token: bytes = TOKEN
    other_token: bytes = OTHER_TOKEN
    epoch: bytes = EPOCH
    sequence: int = 0

    def put_into(self, frame: bytes) -> bytes:
        """The frame with this session's own bytes."""
        if len(frame) > 1 << 20:
            return frame
        frame = frame.replace(TOKEN, self.token).replace(OTHER_TOKEN, self.other_token)
        frame = frame.replace(EPOCH, self.epoch)
        return _SEQUENCE.sub(
            lambda found: struct.pack(">BQ", 0xCF, self.sequence + int.from_bytes(found[1], "big")),
            frame,
        )
