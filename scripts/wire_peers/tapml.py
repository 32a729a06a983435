"""tapml itself: ``tapml rpc serve`` on the CPU, over each binding, in the peers' terms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import numpy as np

from scripts.wire_fuzz.keys import make_keys
from scripts.wire_fuzz.server import ServerUnderTest
from scripts.wire_peers.process import ROUND_BYTES, Bytes
from tapml_rpc.client import RemoteBuffer, Session, connect
from tapml_rpc.local import open_local


class Tapml:
    """The client's end: a session, and device buffers used in turn."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._buffers: dict[int, Iterator[RemoteBuffer]] = {}

    def upload(self, data: Bytes) -> None:
        """Write; answered when the last byte lies in the device's memory, as the peers' are."""
        self.session.write(self._buffer(data.nbytes), data)

    def download(self, nbytes: int) -> Bytes:
        """Read."""
        return np.frombuffer(self.session.read(self._buffer(nbytes)), np.uint8)

    def _buffer(self, nbytes: int) -> RemoteBuffer:
        if nbytes not in self._buffers:
            count = max(1, ROUND_BYTES // nbytes)
            self._buffers[nbytes] = cycle([self.session.allocate(nbytes) for _ in range(count)])
        return next(self._buffers[nbytes])


@contextmanager
def serve(*arguments: str, device: str = "cpu") -> Iterator[ServerUnderTest]:
    """``tapml rpc serve``, which may load shared libraries on the CPU."""
    allow = ("--allow-shared-libraries",) if device == "cpu" else ()
    with ServerUnderTest(device, *allow, *arguments) as server:
        yield server


@contextmanager
def open_zmq() -> Iterator[Tapml]:
    """Over ZeroMQ, without keys."""
    with serve() as server, connect(server.line["address"]) as session:
        yield Tapml(session)


@contextmanager
def open_worker() -> Iterator[Tapml]:
    """A worker of this process's own, over a socket pair."""
    with open_local("cpu") as session:
        yield Tapml(session)


@contextmanager
def open_curve(folder: Path) -> Iterator[Tapml]:
    """Over ZeroMQ with CURVE; keys go into `folder`."""
    keys = make_keys(folder)
    with (
        serve(*keys.options) as server,
        connect(server.line["address"], credentials=keys.credentials) as session,
    ):
        yield Tapml(session)


@contextmanager
def open_websocket() -> Iterator[Tapml]:
    """Over WebSocket on loopback, without TLS."""
    with (
        serve("--websocket", "ws://127.0.0.1:0") as server,
        connect(server.line["websocket"]) as session,
    ):
        yield Tapml(session)
