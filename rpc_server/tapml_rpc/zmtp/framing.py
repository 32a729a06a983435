"""ZMTP 3 as bytes: greeting, ready command, frame heads, heartbeats. Does no I/O.

See rfc.zeromq.org, 23/ZMTP and 37/ZMTP. Only the mechanism NULL, without encryption.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from tapml_targets.errors import ProtocolError

GREETING_BYTES: Final = 64
MORE: Final = 1
LONG: Final = 2
COMMAND: Final = 4
_RESERVED: Final = 0xFF & ~(MORE | LONG | COMMAND)
_SHORT_BYTES: Final = 255
_LONG_HEAD: Final = struct.Struct("!BQ")
_SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
_VERSION: Final = b"\x03\x00"
_MAJOR: Final = 10
_MECHANISM: Final = slice(12, 32)
_NULL: Final = b"NULL".ljust(20, b"\0")
_PARTNERS: Final = {b"ROUTER": (b"DEALER", b"REQ", b"ROUTER"), b"DEALER": (b"ROUTER", b"REP")}
MAX_COMMAND_BYTES: Final = 4096
"""Most bytes of a handshake command or heartbeat; both are far shorter."""
_MAX_CONTEXT_BYTES: Final = 16

GREETING: Final = _SIGNATURE + _VERSION + _NULL + bytes(GREETING_BYTES - 32)


def check_greeting(greeting: bytes | memoryview) -> None:
    """Check a peer's greeting; raises ProtocolError if it is not ZMTP 3 with the mechanism NULL."""
    heard = bytes(greeting)
    if heard[0] != _SIGNATURE[0] or not heard[9] & 1 or heard[_MAJOR] < _VERSION[0]:
        raise ProtocolError("the peer does not greet as ZeroMQ 4 and later do (ZMTP 3)")
    if heard[_MECHANISM] != _NULL:
        named = heard[_MECHANISM].rstrip(b"\0").decode("ascii", "replace")
        raise ProtocolError(f"the peer wants the mechanism {named!r} here, expected NULL")


def frame_head(nbytes: int, flags: int = 0) -> bytes:
    """The head of a frame of `nbytes`; `flags` are ``MORE`` and ``COMMAND``."""
    if nbytes <= _SHORT_BYTES:
        return bytes((flags, nbytes))
    return _LONG_HEAD.pack(flags | LONG, nbytes)


def message_parts(packed: bytes, parts: Sequence[memoryview | bytes] = ()) -> list[memoryview]:
    """A message as sent over the wire: its header, and the parts of its chunk if it has one."""
    nbytes = sum(map(len, parts))
    if not nbytes:
        return [memoryview(frame_head(len(packed)) + packed)]
    views = [memoryview(b"".join((frame_head(len(packed), MORE), packed, frame_head(nbytes))))]
    for part in parts:
        views.append(memoryview(part))
    return views


def parse_head(data: bytes | bytearray | memoryview, start: int, end: int) -> tuple[int, int, int]:
    """Flags, body bytes and head bytes (0: incomplete) of a frame; raises ProtocolError."""
    if end - start < 2:
        return 0, 0, 0
    flags = data[start]
    if flags & _RESERVED or (flags & COMMAND and flags & MORE):
        raise ProtocolError(f"a frame with the flags {flags:#04x}, which ZMTP 3 does not define")
    if not flags & LONG:
        return flags, data[start + 1], 2
    if end - start < _LONG_HEAD.size:
        return 0, 0, 0
    return flags, int.from_bytes(data[start + 1 : start + 9]), _LONG_HEAD.size


def command(name: bytes, data: bytes = b"") -> bytes:
    """A command as a complete frame."""
    body = bytes((len(name),)) + name + data
    return frame_head(len(body), COMMAND) + body


def parse_command(body: bytes) -> tuple[bytes, bytes]:
    """The name and the data of a command; raises ProtocolError if it is shorter than its name."""
    if not body or len(body) < 1 + body[0]:
        raise ProtocolError("a ZMTP command that is shorter than its name")
    end = 1 + body[0]
    return body[1:end], body[end:]


def ready(socket_type: bytes) -> bytes:
    """The ready command of a socket without a routing id."""
    properties = ((b"Socket-Type", socket_type), (b"Identity", b""))
    return command(
        b"READY",
        b"".join(
            bytes((len(name),)) + name + struct.pack("!I", len(value)) + value
            for name, value in properties
        ),
    )


def check_ready(body: bytes, socket_type: bytes) -> None:
    """Check a peer's ready command; `socket_type` is ours. Raises ProtocolError."""
    name, data = parse_command(body)
    if name == b"ERROR":
        raise ProtocolError(f"the peer ends the handshake: {data[1:200].decode(errors='replace')}")
    if name != b"READY":
        raise ProtocolError(f"the command {name[:20]!r} in a handshake, expected READY")
    found = _properties(data).get(b"socket-type", b"")
    if found not in _PARTNERS[socket_type]:
        raise ProtocolError(
            f"the peer is a {found[:20].decode(errors='replace') or 'nameless'} socket, expected "
            + " or ".join(each.decode() for each in _PARTNERS[socket_type])
        )


def pong(ping: bytes) -> bytes:
    """The answer to a PING with this data, which begins with its time to live."""
    if not 2 <= len(ping) <= 2 + _MAX_CONTEXT_BYTES:
        raise ProtocolError(f"a ZMTP PING of {len(ping)} bytes")
    return command(b"PONG", ping[2:])


def _properties(data: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    position = 0
    while position < len(data):
        start, end = position + 1, position + 1 + data[position]
        value = end + 4
        position = value + int.from_bytes(data[end:value])
        if position > len(data):
            raise ProtocolError("a ZMTP property that is longer than its command")
        found[data[start:end].lower()] = data[value:position]
    return found
