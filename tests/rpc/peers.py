"""A server process as a test starts it, and a peer that speaks to it without our client."""

from __future__ import annotations

import hashlib
import time
from types import TracebackType
from typing import Any

import zmq

from tapml_rpc import wire
from tests.rpc.announced import AnnouncedProcess

PATIENCE_MILLISECONDS = 60_000


class ServerProcess(AnnouncedProcess):
    """``tapml rpc serve``."""

    def __init__(self, *arguments: str, device: str = "opencl:0") -> None:
        super().__init__("tapml.cli.main", "rpc", "serve", "--device", device, *arguments)


class RawPeer:
    """A session spoken by hand, so that a test can say what our client never says."""

    def __init__(self, address: str, **hello: Any) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.control = self._connect(address)
        greeting = {
            "type": "hello",
            "versions": [wire.VERSION],
            "download_window": 8 << 20,
            **hello,
        }
        self.control.send(wire.pack(greeting))
        self.welcome = self._receive(self.control)[0]
        self.sequence = 0
        if self.welcome["type"] == "welcome":
            self.data = self._connect(self.welcome["data_address"])

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.welcome["type"] == "welcome":
            goodbye = {"type": "goodbye", "session": self.welcome["session"]}
            self.control.send(wire.pack(goodbye))
        self.context.destroy(linger=200)

    def send(self, header: dict[str, Any], chunk: bytes | None = None) -> None:
        """Send a message on the data socket, with session and epoch unless it has them."""
        full = {"session": self.welcome["session"], "epoch": self.welcome["epoch"], **header}
        self.send_frames([wire.pack(full), *([] if chunk is None else [chunk])])

    def send_frames(self, frames: list[bytes]) -> None:
        """Send frames as they are."""
        self.data.send_multipart(frames)

    def batch(
        self, *commands: list[Any], chunk: bytes | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """Send a batch and return its answer."""
        self.sequence += 1
        header = {
            "type": "batch",
            "sequence": self.sequence,
            "commands": list(commands),
        }
        self.send(header, chunk)
        return self.receive()

    def attach(self, data: bytes) -> str:
        """Bring a blob of at most a chunk and have it attached; its digest."""
        digest = hashlib.sha256(data).hexdigest()
        put = {"operation": "put", "total": len(data), "offset": 0}
        for fields, chunk in ((put, data), ({"operation": "attach"}, None)):
            self.sequence += 1
            self.send(
                {"type": "blob", "sequence": self.sequence, "digest": digest, **fields}, chunk
            )
            assert self.receive()[0]["value"] is True
        return digest

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """The next message on the data socket."""
        return self._receive(self.data)

    def ping(self) -> dict[str, Any]:
        """Ask the control socket how the server is."""
        self.control.send(
            wire.pack({"type": "ping", "sequence": 1, "session": self.welcome["session"]})
        )
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """The next message on the control socket."""
        while True:
            header = self._receive(self.control)[0]
            if header["type"] != "probe":
                return header

    def wait_for(self, **expected: Any) -> None:
        """Ping until the server says so."""
        deadline = time.monotonic() + PATIENCE_MILLISECONDS / 1000
        while True:
            pong = self.ping()
            if all(pong.get(key) == value for key, value in expected.items()):
                return
            assert time.monotonic() < deadline, f"expected {expected}, the server says {pong}"
            time.sleep(0.05)

    def _connect(self, address: str) -> zmq.Socket[bytes]:
        socket = self.context.socket(zmq.DEALER)
        socket.connect(address)
        return socket

    def _receive(self, socket: zmq.Socket[bytes]) -> tuple[dict[str, Any], bytes]:
        assert socket.poll(PATIENCE_MILLISECONDS), "the server does not answer"
        header, *chunk = socket.recv_multipart()
        return wire.unpack(header), chunk[0] if chunk else b""
