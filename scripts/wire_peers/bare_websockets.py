"""Bare ``websockets``: its own synchronous client and server, 1 MB chunks, no compression."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
from websockets.sync.client import ClientConnection, connect
from websockets.sync.server import ServerConnection, serve

from scripts.wire_peers.process import DOWNLOAD, REQUEST, UPLOAD, Bytes, Windows, peer_process

_CHUNK_BYTES: Final = 1 << 20


class BareWebSockets:
    """The client's end."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def upload(self, data: Bytes) -> None:
        """Send chunks and wait for the answer."""
        self._connection.send(REQUEST.pack(UPLOAD, data.nbytes))
        for start in range(0, data.nbytes, _CHUNK_BYTES):
            self._connection.send(data[start : start + _CHUNK_BYTES].data)
        self._connection.recv()

    def download(self, nbytes: int) -> Bytes:
        """Ask for bytes."""
        self._connection.send(REQUEST.pack(DOWNLOAD, nbytes))
        found = np.empty(nbytes, np.uint8)
        _receive(self._connection, found)
        return found


@contextmanager
def open_peer() -> Iterator[BareWebSockets]:
    """A server, and a connection to it."""
    with (
        peer_process("bare_websockets") as port,
        connect(
            f"ws://127.0.0.1:{port}", compression=None, max_size=None, close_timeout=1, proxy=None
        ) as connection,
    ):
        yield BareWebSockets(connection)


def _receive(connection: ClientConnection | ServerConnection, into: Bytes) -> None:
    for start in range(0, into.nbytes, _CHUNK_BYTES):
        chunk = connection.recv(decode=False)
        into[start : start + len(chunk)] = memoryview(chunk)


def main() -> None:
    """Serve until killed."""
    windows = Windows()

    def serve_one(connection: ServerConnection) -> None:
        while True:
            kind, nbytes = REQUEST.unpack(connection.recv(decode=False))
            held = windows.window(nbytes)
            if kind == UPLOAD:
                _receive(connection, held)
                connection.send(b"k")
                continue
            assert kind == DOWNLOAD
            for start in range(0, nbytes, _CHUNK_BYTES):
                connection.send(held[start : min(start + _CHUNK_BYTES, nbytes)].data)

    with serve(serve_one, "127.0.0.1", 0, compression=None, max_size=None) as server:
        print(server.socket.getsockname()[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
