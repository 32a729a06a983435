"""A client that speaks the binding by hand, on the package's own client and not on ours."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tapml_rpc import wire
from tapml_rpc.websocket import frames

PATIENCE_SECONDS = 60.0


def open_connection(url: str, token: str | None = None, **options: Any) -> ClientConnection:
    """A connection as a browser opens it, with whatever else is asked for."""
    offered = [frames.SUBPROTOCOL, *([frames.TOKEN_PREFIX + token] if token else [])]
    given: Any = {"subprotocols": offered, "compression": None, "max_size": 8 << 20, **options}
    opened: Any = connect(
        url,
        proxy=None,
        ping_interval=None,
        open_timeout=PATIENCE_SECONDS,
        close_timeout=1,
        **given,
    )
    connection: ClientConnection = opened.__enter__()
    return connection


class WebSocketPeer:
    """A session spoken by hand, so that a test can say what our client never says."""

    def __init__(self, address: str, token: str | None = None, **hello: Any) -> None:
        self.control = open_connection(address + frames.CONTROL_PATH, token)
        greeting = {"type": "hello", "versions": [wire.VERSION], "download_window": 8 << 20}
        self.control.send(frames.join(wire.pack({**greeting, **hello})))
        self.welcome = receive(self.control)[0]
        self.sequence = 0
        if self.welcome["type"] == "welcome":
            self.data = open_connection(self.welcome["data_address"], token)

    def __enter__(self) -> WebSocketPeer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.control.close()
        if self.welcome["type"] == "welcome":
            self.data.close()

    def send(self, header: dict[str, Any], chunk: bytes = b"") -> None:
        """Send a message on the data connection, with session and epoch unless it has them."""
        full = {"session": self.welcome["session"], "epoch": self.welcome["epoch"], **header}
        self.data.send(frames.join(wire.pack(full), chunk))

    def batch(self, *commands: list[Any], chunk: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """Send a batch and return its answer."""
        self.post(*commands, chunk=chunk)
        return self.receive()

    def post(self, *commands: list[Any], chunk: bytes = b"") -> None:
        """Send a batch."""
        self.sequence += 1
        header = {"type": "batch", "sequence": self.sequence, "commands": list(commands)}
        self.send(header, chunk)

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """The next message on the data connection."""
        return receive(self.data)

    def ping(self) -> dict[str, Any]:
        """Ask the control connection how the server is."""
        header = {"type": "ping", "sequence": 1, "session": self.welcome["session"]}
        self.control.send(frames.join(wire.pack(header)))
        while (answer := receive(self.control)[0])["type"] == "probe":
            pass
        return answer

    def wait_for(self, **expected: Any) -> None:
        """Ping until the server says so."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            pong = self.ping()
            if all(pong.get(key) == value for key, value in expected.items()):
                return
            assert time.monotonic() < deadline, f"expected {expected}, the server says {pong}"
            time.sleep(0.05)


def receive(connection: ClientConnection) -> tuple[dict[str, Any], bytes]:
    """The next message, taken apart."""
    message = connection.recv(PATIENCE_SECONDS)
    assert isinstance(message, bytes)
    packed, chunk = frames.split(message)
    return wire.unpack(packed), bytes(chunk)
