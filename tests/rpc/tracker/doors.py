"""A tracker's door in this process, on a thread of its own; devices come when a test lets them."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

from websockets.sync.client import ClientConnection

from tapml_rpc.flow import Forwarder
from tapml_rpc.tracker.door import Door
from tapml_rpc.tracker.records import Sender
from tapml_rpc.websocket.admission import Guard, Listening
from tests.rpc.websocket.peers import open_connection


class RunningDoor:
    """That door; `heard` are the messages, `gone` why peers have gone, `calls` who is dialled.

    WebSockets are at `host`, and at `port` like the relay.
    """

    def __init__(
        self, guard: Guard | None = None, host: str = "127.0.0.1", port: int = 0, **options: Any
    ) -> None:
        self.heard: list[bytes] = []
        self.gone: list[str] = []
        self.calls: list[tuple[str, str, str]] = []
        self.forwarder = Forwarder()
        tokens: Any = guard
        self.door = Door(
            self.forwarder,
            ("127.0.0.1", port),
            Listening(host, port, tokens, None, {}),
            take=self._hear,
            gone=lambda key, why: self.gone.append(why),
            dial=lambda *call: self.calls.append(call),
            **options,
        )
        self.address = self.door.address
        self.port = int(self.address.rpartition(":")[2])
        self.relay = ("127.0.0.1", self.door.relay_port)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def open(self, path: str, secret: str = "", **options: Any) -> ClientConnection:
        return open_connection(self.address + path, secret or None, **options)

    def allow(self, lease: str, secret: str) -> None:
        self.forwarder.post(partial(self.door.allow, lease, secret))

    def cut(self, lease: str, secret: str) -> None:
        self.forwarder.post(partial(self.door.cut, lease, secret))

    def close(self) -> None:
        self._stop.set()
        self.forwarder.post(lambda: None)
        self._thread.join(5)

    def _hear(self, sender: Sender, read: Any) -> None:
        # What comes is no header, and is not read.
        self.heard.append(bytes(read.args[0]))

    def _run(self) -> None:
        while not self._stop.is_set():
            self.forwarder.step(0.1)
            self.door.look(time.monotonic())
        self.door.close("the tracker ends")
        self.forwarder.close()
