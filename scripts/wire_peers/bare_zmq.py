"""Bare ZeroMQ: DEALER to ROUTER over TCP, 4 MB chunks, four of them unanswered at most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
import zmq

from scripts.wire_peers.process import DOWNLOAD, REQUEST, UPLOAD, Bytes, Windows, peer_process

_CHUNK_BYTES: Final = 4 << 20
_WINDOW: Final = 4


def _chunk_bytes(nbytes: int) -> int:
    return _CHUNK_BYTES


class BareZmq:
    """The client's end.

    Parameters
    ----------
    socket
        Connected to the server.
    chunk_bytes
        In how large pieces so many bytes go.
    window
        Pieces that may be unanswered.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        chunk_bytes: Callable[[int], int] = _chunk_bytes,
        window: int = _WINDOW,
    ) -> None:
        self._socket = socket
        self._chunk_bytes = chunk_bytes
        self._window = window

    def upload(self, data: Bytes) -> None:
        """Send chunks; each is answered."""
        self._socket.send(REQUEST.pack(UPLOAD, data.nbytes))
        unanswered, step = 0, self._chunk_bytes(data.nbytes)
        for start in range(0, data.nbytes, step):
            if unanswered == self._window:
                self._socket.recv()
                unanswered -= 1
            self._socket.send(data[start : start + step].data, copy=False)
            unanswered += 1
        for _ in range(unanswered):
            self._socket.recv()

    def download(self, nbytes: int) -> Bytes:
        """Ask for bytes; each chunk is answered."""
        self._socket.send(REQUEST.pack(DOWNLOAD, nbytes))
        found = np.empty(nbytes, np.uint8)
        for start in range(0, nbytes, self._chunk_bytes(nbytes)):
            chunk = self._socket.recv(copy=False).buffer
            found[start : start + len(chunk)] = chunk
            self._socket.send(b"k")
        return found


@contextmanager
def open_peer() -> Iterator[BareZmq]:
    """A server, and a socket connected to it."""
    with peer_process("bare_zmq") as port, connected(port) as socket:
        yield BareZmq(socket)


@contextmanager
def connected(port: int) -> Iterator[zmq.Socket[bytes]]:
    """A socket to a port of this machine."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket = context.socket(zmq.DEALER)
        socket.connect(f"tcp://127.0.0.1:{port}")
        yield socket
    finally:
        context.destroy(linger=0)


def main() -> None:
    """Serve until killed."""
    windows = Windows()
    socket: zmq.Socket[bytes] = zmq.Context().socket(zmq.ROUTER)
    print(socket.bind_to_random_port("tcp://127.0.0.1"), flush=True)
    while True:
        identity, packed = socket.recv_multipart()
        kind, nbytes = REQUEST.unpack(packed)
        held = windows.window(nbytes)
        starts = range(0, nbytes, _CHUNK_BYTES)
        for number, start in enumerate(starts):
            if kind == UPLOAD:
                socket.recv()
                chunk = socket.recv(copy=False).buffer
                held[start : start + len(chunk)] = chunk
                socket.send_multipart([identity, b"k"])
                continue
            socket.send(identity, zmq.SNDMORE)
            socket.send(held[start : min(start + _CHUNK_BYTES, nbytes)].data, copy=False)
            if number >= _WINDOW:
                socket.recv_multipart()
        if kind == DOWNLOAD:
            for _ in range(min(_WINDOW, len(starts))):
                socket.recv_multipart()


if __name__ == "__main__":
    main()
