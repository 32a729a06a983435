"""Invalid ZMTP as bytes on a plain control or data connection."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from scripts.wire_fuzz.lies import no_value
from tapml_rpc import wire
from tapml_rpc.zmtp import framing

_CONNECT_SECONDS: Final = 5.0
_HANDSHAKE: Final = framing.GREETING + framing.ready(b"DEALER")
_LENGTHS: Final = (0, 1, 255, 256, wire.MAX_CHUNK_BYTES, wire.MAX_CHUNK_BYTES + 1, (1 << 63) - 1)
_NAMES: Final = (b"PING", b"PONG", b"READY", b"ERROR", b"SUBSCRIBE", b"", b"x" * 255)


def throw_zmtp(rng: random.Random, address: str) -> None:
    """Send invalid bytes on a new connection, sometimes without reading the answers."""
    parts = urlsplit(address)
    where = parts.hostname, parts.port
    with suppress(OSError), socket.create_connection(where, _CONNECT_SECONDS) as plain:
        plain.sendall(zmtp_lies(rng))
        if rng.randrange(2):
            plain.shutdown(socket.SHUT_WR)
            while plain.recv(1 << 16):
                pass


def zmtp_lies(rng: random.Random) -> bytes:
    """A valid or invalid handshake, then frames of which some are valid."""
    if rng.randrange(8) == 0:
        return _no_handshake(rng)
    said = b"".join(rng.choice(_PIECES)(rng) for _ in range(rng.randint(1, 12)))
    # Half a frame, and then the end.
    return _HANDSHAKE + said[: rng.randint(0, len(said))] if rng.randrange(2) else _HANDSHAKE + said


def _no_handshake(rng: random.Random) -> bytes:
    wrong = bytearray(_HANDSHAKE)
    wrong[rng.randrange(len(wrong))] = rng.randrange(256)
    return bytes(wrong[: rng.choice([len(wrong), rng.randrange(len(wrong))])])


def _frame(rng: random.Random) -> bytes:
    body = rng.choice([no_value(rng), wire.pack({"type": "batch", "session": rng.randbytes(16)})])
    return framing.frame_head(len(body), rng.choice([0, framing.MORE])) + body


def _long_frame(rng: random.Random) -> bytes:
    body = bytes(rng.choice([60_000, 70_000, 1 << 20]))
    return framing.frame_head(len(body), rng.choice([0, framing.MORE])) + body


def _head_alone(rng: random.Random) -> bytes:
    flags = rng.choice([0, framing.MORE, framing.COMMAND, rng.randrange(256)])
    return framing.frame_head(rng.choice(_LENGTHS), flags)


def _command(rng: random.Random) -> bytes:
    return framing.command(rng.choice(_NAMES), rng.randbytes(rng.choice([0, 2, 18, 19, 200])))


_PIECES: Final[tuple[Callable[[random.Random], bytes], ...]] = (
    *(_frame,) * 3,
    *(_command,) * 2,
    _long_frame,
    _head_alone,
)
