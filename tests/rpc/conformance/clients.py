"""Two small clients written from PROTOCOL.md alone: nothing of ours is in them.

One speaks ZeroMQ, one WebSocket on a bare socket. What they have in common is the protocol.
"""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import time
from contextlib import suppress
from threading import Thread
from types import TracebackType
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgpack
import zmq

PATIENCE_SECONDS = 60.0
"""Within so long an answer comes, on a slow and busy machine too."""

Message = tuple[dict[str, Any], bytes]

Keys = tuple[str, str, str]
"""A client's public key, its secret one, and its server's public one."""

_NEVER_MILLISECONDS = 24 * 3600 * 1000

# What a page says for the codes that it cannot send.
_PAGE_CODES = {4001: 1001, 4003: 1003, 4008: 1008}


class Connection(Protocol):
    """One of a session's two connections, whichever binding carries it."""

    def send(self, header: bytes, chunk: bytes = b"") -> None:
        """Send a message."""

    def receive(self) -> Message:
        """The next message: header and chunk. Raises EndError where the other end hangs up."""

    def close(self) -> None:
        """Hang up."""


class EndError(Exception):
    """The server has hung up.

    Attributes
    ----------
    code
        The close code; 0 where the binding has none.
    """

    def __init__(self, code: int = 0, reason: str = "") -> None:
        super().__init__(reason)
        self.code = code


class ZmqConnection:
    """A DEALER, with CURVE where there are keys, and a monitor that says when it is dropped."""

    def __init__(self, address: str, keys: Keys | None = None) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        if keys is not None:
            mine, secret, server = (key.encode() for key in keys)
            self._socket.curve_publickey = mine
            self._socket.curve_secretkey = secret
            self._socket.curve_serverkey = server
        self._socket.linger = 1000
        # One that is dropped stays so: a session does not resume. With -1 libzmq would forget what
        # has come before the end and was not taken yet.
        self._socket.reconnect_ivl = _NEVER_MILLISECONDS
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(address)

    def send(self, header: bytes, chunk: bytes = b"") -> None:
        self._socket.send_multipart([header, chunk] if chunk else [header])

    def receive(self) -> Message:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        ready = dict(poller.poll(int(PATIENCE_SECONDS * 1000)))
        assert ready, "the server does not answer"
        # What came before the end may have come since it was looked at.
        if self._socket not in ready and not self._socket.poll(0):
            raise EndError
        header, *chunk = self._socket.recv_multipart()
        return msgpack.unpackb(header), chunk[0] if chunk else b""

    def close(self) -> None:
        self._socket.disable_monitor()
        self._context.destroy()


class WebSocketConnection:
    """RFC 6455 on a socket: binary messages, a mask of zeros, no extension; a token where given."""

    def __init__(self, url: str, token: str = "") -> None:
        parts = urlsplit(url)
        assert parts.hostname and parts.port
        self._socket = socket.create_connection((parts.hostname, parts.port), PATIENCE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Protocol: tapml.1{token and f', tapml-token.{token}'}\r\n\r\n".encode()
        )
        self._stream = self._socket.makefile("rb")
        status = self._stream.readline()
        headers = {}
        while line := self._stream.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        assert status.split()[1] == b"101", status
        assert headers["sec-websocket-protocol"] == "tapml.1"

    def send(self, header: bytes, chunk: bytes = b"") -> None:
        message = len(header).to_bytes(4, "little") + header
        if chunk:
            message += bytes(-len(message) % 8) + chunk
        self.send_frame(0x82, message)

    def send_frame(self, kind: int, payload: bytes) -> None:
        """Send a frame; 0x82 is a whole binary message, 0x81 a text, 0x88 a close."""
        size = len(payload)
        if size < 126:
            length = bytes([0x80 | size])
        elif size < 1 << 16:
            length = bytes([0x80 | 126]) + size.to_bytes(2, "big")
        else:
            length = bytes([0x80 | 127]) + size.to_bytes(8, "big")
        # Where it has hung up already, what it said first is still to be read.
        with suppress(OSError):
            self._socket.sendall(bytes([kind]) + length + bytes(4) + payload)

    def receive(self) -> Message:
        message = bytearray()
        while True:
            first, length = self._exactly(2)
            if length >= 126:
                length = int.from_bytes(self._exactly(2 if length == 126 else 8), "big")
            payload = self._exactly(length)
            kind = first & 0x0F
            if kind == 8:
                code = int.from_bytes(payload[:2], "big")
                raise EndError(_PAGE_CODES.get(code, code), payload[2:].decode())
            if kind in (0, 2):
                message += payload
                if first & 0x80:
                    break
        size = int.from_bytes(message[:4], "little")
        header, rest = bytes(message[4 : 4 + size]), message[4 + size :]
        chunk = bytes(rest[-(4 + size) % 8 :])
        return msgpack.unpackb(header), chunk

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def _exactly(self, nbytes: int) -> bytes:
        try:
            data = self._stream.read(nbytes)
        except ConnectionResetError:
            raise EndError from None
        if len(data) < nbytes:
            raise EndError
        return data


def through(relay: tuple[str, int], role: str, token: str) -> str:
    """An address of this machine that leads one connection through a relay of bytes."""
    ticket = hashlib.sha256(f"tapml relay {token}".encode()).hexdigest()[:32]
    far = socket.create_connection(relay, PATIENCE_SECONDS)
    far.sendall(
        f"GET /{role} HTTP/1.1\r\nHost: relay\r\nConnection: Upgrade\r\n"
        f"Upgrade: tapml-bytes\r\nAuthorization: Bearer {ticket}\r\n\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = far.recv(1)
        assert byte, head
        head += byte
    assert head.startswith(b"HTTP/1.1 101 "), head
    far.settimeout(None)
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        near, _ = listener.accept()
        listener.close()
        Thread(target=pump, args=(far, near), daemon=True).start()
        pump(near, far)

    Thread(target=serve, daemon=True).start()
    return f"tcp://127.0.0.1:{listener.getsockname()[1]}"


class LocalConnection:
    """Frames of ZMTP on a socket without a handshake, as a worker of this machine takes them."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE_SECONDS)
        self._socket = connection

    def send(self, header: bytes, chunk: bytes = b"") -> None:
        frames = [header, chunk] if chunk else [header]
        for number, frame in enumerate(frames, 1):
            more = int(number < len(frames))
            self._socket.sendall(bytes([more | 2]) + len(frame).to_bytes(8, "big") + frame)

    def receive(self) -> Message:
        frames, more = [], True
        while more:
            (flags,) = self._exactly(1)
            length = int.from_bytes(self._exactly(8 if flags & 2 else 1), "big")
            frames.append(self._exactly(length))
            more = bool(flags & 1)
        return msgpack.unpackb(frames[0]), b"".join(frames[1:])

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, nbytes: int) -> bytes:
        data = b""
        while len(data) < nbytes:
            piece = self._socket.recv(nbytes - len(data))
            if not piece:
                raise EndError
            data += piece
        return data


class Client:
    """A session, as PROTOCOL.md says one is opened.

    Parameters
    ----------
    line
        The server's announcement.
    binding
        ``zmq`` or ``websocket``.
    token
        Of the lease it is under, where it is under one.
    keys
        Where the server asks for some; for ``zmq`` alone.
    relay
        Host and port of the relay of bytes that leads to the server; for ``zmq`` alone.
    hello
        Fields beside those every hello has.
    """

    def __init__(
        self,
        line: dict[str, Any],
        binding: str,
        token: str = "",
        keys: Keys | None = None,
        relay: tuple[str, int] | None = None,
        **hello: Any,
    ) -> None:
        self._line, self._binding = line, binding

        def connect(address: str, role: str) -> Connection:
            if binding == "websocket":
                return WebSocketConnection(address, token)
            if relay is not None:
                address = through(relay, role, token)
            return ZmqConnection(address, keys)

        self._connect = connect
        address = line["websocket"] + "/control" if binding == "websocket" else line["address"]
        self.control: Connection = connect(address, "control")
        greeting = {"type": "hello", "versions": [3], "features": [], "download_window": 8 << 20}
        self.lease = {"lease": token} if token else {}
        self.control.send(msgpack.packb({**greeting, **self.lease, **hello}))
        self.welcome = self.hear()
        self.sequence = 0
        self._data: Connection | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.welcome["type"] == "welcome":
            self.say("goodbye")
        self.control.close()
        if self._data is not None:
            self._data.close()

    @property
    def data(self) -> Connection:
        """The data connection, opened when it is first used."""
        if self._data is None:
            self._data = self.another()
        return self._data

    def another(self) -> Connection:
        """Another data connection."""
        address: str = self.welcome["data_address"]
        if self._binding == "websocket":
            # Only its path counts.
            address = self._line["websocket"] + urlsplit(address).path
        return self._connect(address, "data")

    @property
    def own(self) -> dict[str, bytes]:
        """What every message on the data connection carries."""
        return {"session": self.welcome["session"], "epoch": self.welcome["epoch"]}

    def say(self, kind: str, **fields: Any) -> None:
        """Send a control message."""
        header = {"type": kind, "session": self.welcome["session"], **fields}
        self.control.send(msgpack.packb(header))

    def hear(self) -> dict[str, Any]:
        """The next control message; a probe is not answered."""
        while (header := self.control.receive()[0])["type"] == "probe":
            pass
        return header

    def ping(self, **fields: Any) -> dict[str, Any]:
        """A heartbeat's answer."""
        self.say("ping", sequence=1, **fields)
        return self.hear()

    def wait_for(self, **expected: Any) -> dict[str, Any]:
        """Ask until the server says so."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            pong = self.ping()
            if all(pong[key] == value for key, value in expected.items()):
                return pong
            assert time.monotonic() < deadline, f"expected {expected}, the server says {pong}"

    def post(self, *commands: Any, chunk: bytes = b"", **fields: Any) -> int:
        """Send a batch; its sequence number."""
        self.sequence += 1
        header = {"type": "batch", "sequence": self.sequence, "commands": commands, **fields}
        self.data.send(msgpack.packb({**self.own, **header}), chunk)
        return self.sequence

    def batch(self, *commands: Any, chunk: bytes = b"", **fields: Any) -> Message:
        """Send a batch and take its answer."""
        self.post(*commands, chunk=chunk, **fields)
        return self.data.receive()

    def ended(self) -> dict[str, Any]:
        """The answer to a batch of a session that is over.

        The worker, which answers batches, hears of the end after the other connection.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            answer, _ = self.batch(["fence"])
            if answer["type"] != "done":
                return answer
            assert time.monotonic() < deadline, "the worker goes on with a session that is over"

    def blob(self, operation: str, chunk: bytes = b"", **fields: Any) -> dict[str, Any]:
        """Ask for something about blobs; the answer."""
        self.sequence += 1
        header = {"type": "blob", "sequence": self.sequence, "operation": operation, **fields}
        self.data.send(msgpack.packb({**self.own, **header}), chunk)
        return self.data.receive()[0]

    def give_credit(self, nbytes: int) -> None:
        """Say that so many more bytes may come."""
        self.data.send(msgpack.packb({**self.own, "type": "credit", "bytes": nbytes}))
