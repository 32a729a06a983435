"""Bare ZeroMQ to a process that passes the bytes on to a second one, like a supervisor.

The minimal cost of two processes: one receives and copies into shared memory, the other copies from
there to its own. There is no session, no header and no check; chunks have the same size as ours.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import mmap
from typing import Final

import zmq

from scripts.wire_peers.bare_zmq import BareZmq, connected
from scripts.wire_peers.process import DOWNLOAD, REQUEST, UPLOAD, Windows, peer_process

_WINDOW: Final = 16
_RING_BYTES: Final = 2 * _WINDOW << 20
# What the second process is asked and answers: which way, and the part of its memory.
_PART: Final = struct.Struct("<cQQ")


def _chunk_bytes(nbytes: int) -> int:
    return min(1 << 20, max(nbytes // 2, 1))


@contextmanager
def open_peer() -> Iterator[BareZmq]:
    """Both servers, and a socket connected to the first."""
    with peer_process("bare_relay") as port, connected(port) as connection:
        yield BareZmq(connection, _chunk_bytes, _WINDOW)


class _Relay:
    """The first process: between the client's socket and the second process."""

    def __init__(self, shared: memoryview, behind: socket.socket) -> None:
        self._shared = shared
        self._behind = behind
        self._socket: zmq.Socket[bytes] = zmq.Context().socket(zmq.ROUTER)
        self._client = b""
        self._windows = Windows()
        # Bytes that are still to come up, and parts that are still to be asked for.
        self._missing = self._start = 0
        self._wanted: list[tuple[int, int]] = []

    def run(self) -> None:
        """Serve until killed."""
        print(self._socket.bind_to_random_port("tcp://127.0.0.1"), flush=True)
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._behind, zmq.POLLIN)
        while True:
            for source, _ in poller.poll():
                if source is self._socket:
                    self._hear_client()
                else:
                    self._hear_behind()

    def _hear_client(self) -> None:
        self._client = self._socket.recv()
        message = self._socket.recv(copy=False).buffer
        if self._missing:
            self._tell(UPLOAD, self._start, len(message), message)
            self._start += len(message)
            self._missing -= len(message)
        elif len(message) == REQUEST.size:
            kind, nbytes = REQUEST.unpack(message)
            step = _chunk_bytes(nbytes)
            begin = self._windows.start(nbytes)
            if kind == UPLOAD:
                self._start, self._missing = begin, nbytes
                return
            end = begin + nbytes
            self._wanted = [(start, min(step, end - start)) for start in range(begin, end, step)]
            for _ in range(min(_WINDOW, len(self._wanted))):
                self._tell(DOWNLOAD, *self._wanted.pop(0))
        elif self._wanted:
            self._tell(DOWNLOAD, *self._wanted.pop(0))

    def _tell(
        self, kind: bytes, start: int, nbytes: int, content: memoryview | None = None
    ) -> None:
        if content is not None:
            place = start % _RING_BYTES
            self._shared[place : place + nbytes] = content
        self._behind.sendall(_PART.pack(kind, start, nbytes))

    def _hear_behind(self) -> None:
        kind, start, nbytes = _PART.unpack(self._behind.recv(_PART.size, socket.MSG_WAITALL))
        self._socket.send(self._client, zmq.SNDMORE)
        if kind == UPLOAD:
            self._socket.send(b"k")
        else:
            place = start % _RING_BYTES
            self._socket.send(self._shared[place : place + nbytes], copy=False)


def _serve_behind(shared: memoryview, ahead: socket.socket) -> None:
    """The second process: brings parts to its memory and back."""
    held = Windows().held.data
    while part := ahead.recv(_PART.size, socket.MSG_WAITALL):
        kind, start, nbytes = _PART.unpack(part)
        place = start % _RING_BYTES
        if kind == UPLOAD:
            held[start : start + nbytes] = shared[place : place + nbytes]
        else:
            shared[place : place + nbytes] = held[start : start + nbytes]
        ahead.sendall(part)


def main() -> None:
    """Serve until killed."""
    shared = memoryview(mmap(-1, _RING_BYTES))
    ahead, behind = socket.socketpair()
    if os.fork():
        behind.close()
        _Relay(shared, ahead).run()
    else:
        ahead.close()
        select.select([behind], [], [])
        _serve_behind(shared, behind)


if __name__ == "__main__":
    main()
