"""Strangers that speak ZMTP by hand, and what they may make a server keep."""

from __future__ import annotations

import re
import socket
import time
from contextlib import suppress
from pathlib import Path

from tapml_rpc import wire
from tapml_rpc.zmtp import framing

PATIENCE = 60.0
HANDSHAKE = framing.GREETING + framing.ready(b"DEALER")
PAST_THE_HANDSHAKE = len(framing.GREETING + framing.ready(b"ROUTER"))


def stranger(address: str, says: bytes = HANDSHAKE) -> socket.socket:
    """A connection that has said so much."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    connection = socket.create_connection((host, int(port)), PATIENCE)
    connection.sendall(says)
    return connection


def frame(body: bytes, *, more: bool = False) -> bytes:
    """A frame as it goes over the wire."""
    return framing.frame_head(len(body), framing.MORE * more) + body


def heard(connection: socket.socket) -> wire.Header:
    """The first message of the server's."""
    received = b""
    while True:
        received += connection.recv(4096)
        if len(received) < PAST_THE_HANDSHAKE:
            continue
        _, nbytes, size = framing.parse_head(received, PAST_THE_HANDSHAKE, len(received))
        start = PAST_THE_HANDSHAKE + size
        if size and len(received) >= start + nbytes:
            return wire.unpack(received[start : start + nbytes])


def hung_up_on(connection: socket.socket) -> bool:
    """Wait until the server has hung up."""
    with suppress(ConnectionError):
        while connection.recv(4096):
            pass
    return True


def memory_bytes(pid: int) -> int:
    """What a process has of the machine's memory."""
    (resident,) = re.findall(r"^VmRSS:\s*(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(resident) << 10


def send_without_end(connection: socket.socket) -> None:
    """Send a message that has no end, until it is hung up on."""
    endless = frame(b"x" * 60_000, more=True) * 16
    deadline = time.monotonic() + PATIENCE
    with suppress(ConnectionError):
        # It is read on for a while after it was told why.
        while time.monotonic() < deadline:
            connection.sendall(endless)
        raise AssertionError("one message for a minute, and nobody hung up")
