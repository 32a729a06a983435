"""Strangers that speak ZMTP by hand, and what they may make a server keep."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from tapml_rpc import wire
from tapml_rpc.zmtp import framing

PATIENCE = 60.0


def stranger(address: str) -> socket.socket:
    """A connection whose handshake is done.

    libzmq takes any frame that comes before its own ready command is out for one of the handshake,
    and hangs up: the server is heard first.
    """
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    connection = socket.create_connection((host, int(port)), PATIENCE)
    connection.sendall(framing.GREETING + framing.ready(b"DEALER"))
    _receive(connection, framing.GREETING_BYTES)
    flags, _ = _receive_frame(connection)
    assert flags & framing.COMMAND
    return connection


def frame(body: bytes) -> bytes:
    """A frame as it goes over the wire."""
    return framing.frame_head(len(body)) + body


def heard(connection: socket.socket) -> wire.Header:
    """The next message of the server's."""
    flags, body = _receive_frame(connection)
    assert not flags & framing.COMMAND
    return wire.unpack(body)


def memory_bytes(pid: int) -> int:
    """What a process has of the machine's memory."""
    (resident,) = re.findall(r"^VmRSS:\s*(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(resident) << 10


def _receive_frame(connection: socket.socket) -> tuple[int, bytes]:
    head = b""
    while True:
        head += _receive(connection, 1)
        flags, nbytes, size = framing.parse_head(head, 0, len(head))
        if size:
            return flags, _receive(connection, nbytes)


def _receive(connection: socket.socket, nbytes: int) -> bytes:
    received = b""
    while len(received) < nbytes:
        more = connection.recv(nbytes - len(received))
        assert more, f"the server hung up after {len(received)} of {nbytes} bytes"
        received += more
    return received
