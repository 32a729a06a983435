"""A plain TCP connection: 2 MB writes, and reads straight into memory."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from scripts.wire_peers.process import DOWNLOAD, REQUEST, UPLOAD, Bytes, Windows, peer_process

_WRITE_BYTES: Final = 2 << 20


class RawSocket:
    """The client's end."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def upload(self, data: Bytes) -> None:
        """Send the bytes and wait for the answer."""
        self._connection.sendall(REQUEST.pack(UPLOAD, data.nbytes))
        _send(self._connection, data)
        assert self._connection.recv(1) == b"k"

    def download(self, nbytes: int) -> Bytes:
        """Ask for bytes."""
        self._connection.sendall(REQUEST.pack(DOWNLOAD, nbytes))
        found = np.empty(nbytes, np.uint8)
        _receive(self._connection, found)
        return found


@contextmanager
def open_peer() -> Iterator[RawSocket]:
    """A server, and a connection to it."""
    with (
        peer_process("raw_socket") as port,
        socket.create_connection(("127.0.0.1", port)) as connection,
    ):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield RawSocket(connection)


def _send(connection: socket.socket, data: Bytes) -> None:
    for start in range(0, data.nbytes, _WRITE_BYTES):
        connection.sendall(data[start : start + _WRITE_BYTES].data)


def _receive(connection: socket.socket, into: Bytes) -> None:
    view = into.data
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]


def main() -> None:
    """Serve one connection."""
    windows = Windows()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        connection, _ = listening.accept()
    request = np.empty(REQUEST.size, np.uint8)
    while connection.recv(1, socket.MSG_PEEK):
        _receive(connection, request)
        kind, nbytes = REQUEST.unpack(request.data)
        if kind == UPLOAD:
            _receive(connection, windows.window(nbytes))
            connection.sendall(b"k")
        else:
            _send(connection, windows.window(nbytes))


if __name__ == "__main__":
    main()
