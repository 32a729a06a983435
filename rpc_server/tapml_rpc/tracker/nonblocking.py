"""Non-blocking reads and writes, with TLS or without: one way to report "not now"."""

from __future__ import annotations

import socket
import ssl
from typing import Final

RECEIVE_BYTES: Final = 32 << 10
"""More than a TLS record holds: nothing remains where no poll sees it."""
_NOT_NOW: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def receive(connection: socket.socket) -> bytes | None:
    """Received bytes; None for nothing, empty at the end.

    Raises OSError if the connection is gone.
    """
    try:
        return connection.recv(RECEIVE_BYTES)
    except _NOT_NOW:
        return None


def send(connection: socket.socket, data: bytes | bytearray | memoryview) -> int:
    """How much of `data` was taken; 0 if there is no room. Raises as :func:`receive` does."""
    try:
        return connection.send(data)
    except _NOT_NOW:
        return 0
