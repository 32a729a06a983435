"""How to reach one server over each binding it announced."""

from __future__ import annotations

import random
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import zmq

from scripts.wire_fuzz.keys import Keys, make_keys
from scripts.wire_fuzz.peer import Wire
from scripts.wire_fuzz.websocket_wire import WebSocketWire, throw_frames
from scripts.wire_fuzz.zmq_wire import ZmqWire
from scripts.wire_fuzz.zmtp_bytes import throw_zmtp

BINDINGS: Final = ("zmq", "curve", "websocket")
# What each binding's options to `tapml rpc serve` are beside keys, and where the announcement has
# its address.
SERVE_OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "zmq": (),
    "curve": (),
    "websocket": ("--websocket", "ws://127.0.0.1:0"),
}
_LIARS: Final = 8
ADDRESS_KEYS: Final = {"zmq": "address", "curve": "address", "websocket": "websocket"}


@contextmanager
def keys_of(binding: str) -> Iterator[Keys | None]:
    """Yields what a binding's server and client need of keys, None for nothing."""
    if binding != "curve":
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        yield make_keys(Path(folder))


@contextmanager
def open_binding(
    binding: str, line: dict[str, Any], keys: Keys | None
) -> Iterator[Callable[[], Wire]]:
    """Yields a function that connects the control socket to the server that announced `line`."""
    address = address_of(binding, line)
    if binding == "websocket":
        yield lambda: WebSocketWire(address)
        return
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        yield lambda: ZmqWire(context, address, None if keys is None else keys.credentials.curve())
    finally:
        context.destroy(linger=0)


def address_of(binding: str, line: dict[str, Any]) -> str:
    """Where the server listens in this binding.

    Raises
    ------
    LookupError
        If it does not.
    """
    address = line.get(ADDRESS_KEYS[binding])
    if not isinstance(address, str):
        raise LookupError(f"this server has no {binding} binding")
    return address


def throw_garbage(rng: random.Random, address: str, data_address: str) -> int:
    """Random bytes on plain connections, which speak neither binding; how many were sent."""
    if address.startswith("ws"):
        throw_frames(rng, address)
    else:
        for _ in range(_LIARS):
            throw_zmtp(rng, rng.choice([address, data_address]))
    parts = urlsplit(address)
    data = rng.choice(
        [
            rng.randbytes(rng.randint(1, 4096)),
            b"GET /control HTTP/1.1\r\nUpgrade: websocket\r\n" + rng.randbytes(40),
            # The greeting of ZMTP, then nonsense.
            b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL" + bytes(48) + rng.randbytes(200),
        ]
    )
    with suppress(OSError), socket.create_connection((parts.hostname, parts.port), 5) as plain:
        plain.sendall(data)
    return len(data)
