"""A device that somebody else wrote, after PROTOCOL.md: a WebSocket client, msgpack, and no tapml.

It only connects out, as a page in a browser would, keeps its buffers in memory and serves one
session at a time: hello, ping, and batches of allocate, write, fill, read, free and fence. It comes
back by itself when the tracker does. What happens to it is told on standard output, a word a line.

    python foreign_device.py ws://127.0.0.1:9192 NAME [TOKEN]
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any

import msgpack
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

DEVICE = {
    "platform": "webgpu",
    "index": 0,
    "name": "a page's memory",
    "vendor_platform": "nobody's",
    "device_type": "cpu",
    "driver_version": "1",
    "limits": {
        "max_threads_per_block": 256,
        "max_block": [256, 256, 64],
        "max_grid": [65535, 65535, 65535],
        "max_shared_memory_bytes": 16384,
        "max_buffer_bytes": 1 << 28,
        "memory_bytes": 1 << 30,
        "max_arguments": 8,
        "features": ["float16"],
    },
    "details": {},
}
BOUNDS = {
    "chunk_bytes": 4 << 20,
    "commands": 256,
    "unanswered": 16,
    "upload_window": 16 << 20,
    "download_window": 16 << 20,
    "handles": 256,
    "session_bytes": 1 << 28,
    "library_bytes": 1 << 20,
    "sessions": 1,
    "programs": 1,
    "program_commands": 1,
    "program_bytes": 1024,
}


PIECE_BYTES = 256 << 10
GONE = (OSError, WebSocketException, EOFError, KeyError)


def tell(*words: object) -> None:
    print(*words, flush=True)


def join(header: dict[str, Any], chunk: bytes = b"") -> bytes:
    packed: bytes = msgpack.packb(header)
    message = struct.pack("<I", len(packed)) + packed
    return message + bytes(-len(message) % 8) + chunk if chunk else message


def split(message: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack_from("<I", message)
    header: dict[str, Any] = msgpack.unpackb(message[4 : 4 + length])
    return header, message[(4 + length + 7) & ~7 :]


def open_socket(url: str, secret: str) -> ClientConnection:
    offered: Any = ["tapml.1", *([f"tapml-token.{secret}"] if secret else [])]
    return connect(
        url,
        subprotocols=offered,
        compression=None,
        max_size=6 << 20,
        proxy=None,
        ping_interval=None,
        open_timeout=60,
        close_timeout=1,
    )


class Session:
    """What one client has here."""

    def __init__(self) -> None:
        self.token = os.urandom(16)
        self.epoch = os.urandom(8)
        self.buffers: dict[int, bytearray] = {}
        self.credit = 0
        self.waiting: deque[tuple[dict[str, Any], bytes]] = deque()

    def control(self, endpoint: ClientConnection, lease_token: str) -> None:
        for message in endpoint:
            header, _ = split(bytes(message))  # type: ignore[arg-type]
            if header["type"] == "hello" and header.get("lease") != lease_token:
                error = {"kind": "SetupError", "message": "this is another one's device"}
                endpoint.send(join({"type": "refused", "error": error}))
            elif header["type"] == "hello":
                self.credit = header["download_window"]
                endpoint.send(join(self.welcome()))
            elif header["type"] == "ping":
                pong = {"type": "pong", "sequence": header["sequence"], "answered": 0}
                endpoint.send(join({**pong, "sessions": 1, "device_bytes": 0}))
            elif header["type"] == "goodbye":
                return

    def data(self, endpoint: ClientConnection) -> None:
        while True:
            if not self.waiting:
                self.hear(endpoint)
            while self.waiting:
                header, chunk = self.waiting.popleft()
                if header["type"] == "goodbye":
                    return
                if header["type"] == "batch":
                    done, answer = self.run(endpoint, header, chunk)
                    endpoint.send(join(done, answer))

    def hear(self, endpoint: ClientConnection) -> None:
        header, chunk = split(bytes(endpoint.recv()))  # type: ignore[arg-type]
        if header["type"] == "credit":
            self.credit += header["bytes"]
        else:
            self.waiting.append((header, chunk))

    def stream(self, endpoint: ClientConnection, where: dict[str, Any], data: bytearray) -> None:
        """A long read goes in pieces, as the client gives credit for them."""
        for offset in range(0, len(data), PIECE_BYTES):
            piece = bytes(data[offset : offset + PIECE_BYTES])
            while self.credit < len(piece):
                self.hear(endpoint)
            self.credit -= len(piece)
            endpoint.send(join({"type": "data", **where, "offset": offset}, piece))

    def welcome(self) -> dict[str, Any]:
        return {
            "type": "welcome",
            "version": 3,
            "features": [],
            "server": "somebody else's 1.0",
            "device": DEVICE,
            "bounds": BOUNDS,
            "epoch": self.epoch,
            "session": self.token,
            "data_address": "/data",
            "kernel_deadline": 60.0,
            "silence_seconds": 60.0,
        }

    def run(
        self, endpoint: ClientConnection, batch: dict[str, Any], chunk: bytes
    ) -> tuple[dict[str, Any], bytes]:
        results: list[Any] = []
        answer = bytearray()
        for index, (name, handle, *fields) in enumerate(
            [*command, 0] if len(command) == 1 else command for command in batch["commands"]
        ):
            if name == "allocate":
                self.buffers[handle] = bytearray(fields[0])
            elif name == "free":
                self.buffers.pop(handle, None)
            elif name == "write":
                offset, size, start = fields
                self.buffers[handle][offset : offset + size] = chunk[start : start + size]
            elif name == "fill":
                offset, size, pattern = fields
                repeated = pattern * (size // len(pattern) + 1)
                self.buffers[handle][offset : offset + size] = repeated[:size]
            elif name == "read":
                offset, size = fields
                if size > PIECE_BYTES:
                    where = {"sequence": batch["sequence"], "index": index}
                    self.stream(endpoint, where, self.buffers[handle][offset : offset + size])
                    results.append([index, size])
                    continue
                answer += bytes(-len(answer) % 8)
                results.append([index, [len(answer), size]])
                answer += self.buffers[handle][offset : offset + size]
            elif name == "fence":
                results.append([index, True])
        done = {"type": "done", "sequence": batch["sequence"], "results": results}
        return done, bytes(answer)


class Device:
    """One life at the tracker after another."""

    def __init__(self, url: str, name: str, secret: str) -> None:
        self.url, self.name, self.secret = url, name, secret
        self.life = os.urandom(16)
        self.leases: dict[str, str] = {}
        self.sessions: dict[str, Session] = {}
        self.endpoints: dict[str, list[ClientConnection]] = {}

    def live(self) -> None:
        while True:
            with suppress(*GONE), open_socket(f"{self.url}/tracker", self.secret) as tracker:
                self.serve(tracker)
            for lease in list(self.leases):
                self.end(lease)
            tell("alone")
            time.sleep(0.1)

    def serve(self, tracker: ClientConnection) -> None:
        load = {"sessions": 0, "device_bytes": 0}
        fields = {"versions": [2], "name": self.name, "life": self.life, "device": DEVICE}
        tracker.send(join({"type": "register", **fields, "address": "relay+ws", "load": load}))
        beat = time.monotonic() + 1
        while True:
            try:
                message = tracker.recv(max(0.0, beat - time.monotonic()))
            except TimeoutError:
                tracker.send(join({"type": "load", "load": load}))
                beat = time.monotonic() + 1
                continue
            header, _ = split(bytes(message))  # type: ignore[arg-type]
            kind, lease = header["type"], header.get("lease", "")
            if kind == "registered":
                tell("registered", header["name"])
            elif kind == "refused":
                tell("refused", header["error"]["message"])
                return
            elif kind == "lease":
                self.leases[lease], self.sessions[lease] = header["token"], Session()
                self.endpoints[lease] = []
                tracker.send(join({"type": "lease-accepted", "lease": lease}))
                tell("lease", header["label"])
            elif kind == "dial" and lease in self.leases:
                threading.Thread(
                    target=self.come, args=(lease, header["stream"], header["role"]), daemon=True
                ).start()
            elif kind == "lease-ended":
                self.end(lease)
                tracker.send(join({"type": "lease-cleared", "lease": lease}))
                tell("ended", header["why"])

    def come(self, lease: str, stream: str, role: str) -> None:
        with suppress(*GONE), open_socket(f"{self.url}/leg", stream) as endpoint:
            self.endpoints[lease].append(endpoint)
            session, token = self.sessions[lease], self.leases[lease]
            if role == "control":
                session.control(endpoint, token)
            else:
                session.data(endpoint)

    def end(self, lease: str) -> None:
        self.leases.pop(lease, None)
        self.sessions.pop(lease, None)
        for endpoint in self.endpoints.pop(lease, []):
            endpoint.close()


if __name__ == "__main__":
    assert not any(name.startswith("tapml") for name in sys.modules)
    Device(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "").live()
