"""Addresses that lead through the tracker: ``relay://HOST:PORT/TOKEN``, to a session's control.

A lease has one for a device that only connects out. :func:`connect_socket` takes a ZeroMQ socket
there, :func:`open_stream` a plain one. ``relay+ws://`` and ``relay+wss://`` lead through a
tracker's WebSocket door instead: a server's address like any other, whose token is the lease's.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tapml_rpc.relay.tunnel import open_tunnel, ticket
from tapml_rpc.security.bind import bracketed
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    import zmq

_SCHEME: Final = "relay"
_THROUGH: Final = "relay+"
_DIAL_SECONDS: Final = 8.0


@dataclass(frozen=True)
class RelayAddress:
    """The parts of an address that leads through a relay."""

    host: str
    port: int
    token: str
    role: str

    def __str__(self) -> str:
        role = "" if self.role == "control" else f"/{self.role}"
        return f"{_SCHEME}://{bracketed(self.host)}:{self.port}/{self.token}{role}"


def is_relayed(address: str) -> bool:
    """Whether an address leads through a relay."""
    return address.startswith(f"{_SCHEME}://")


def parse(address: str) -> RelayAddress:
    """Parse a relay's address; raises InputError if it is malformed."""
    try:
        parts = urlsplit(address)
        token, _, role = parts.path.removeprefix("/").partition("/")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, token, role = None, None, "", ""
    if not is_relayed(address) or not host or not port or not token.isalnum():
        raise InputError(f"expected {_SCHEME}://HOST:PORT/TOKEN as a lease gives it, got {address}")
    return RelayAddress(host, port, token, role or "control")


def websocket_through(address: str) -> tuple[str, str]:
    """The WebSocket address, and its token, behind ``relay+ws://HOST:PORT/TOKEN``.

    Raises InputError if it is malformed.
    """
    url, _, token = address.removeprefix(_THROUGH).rpartition("/")
    if not leads_to_websocket(address) or not token.isalnum() or urlsplit(url).hostname is None:
        raise InputError(f"expected {_THROUGH}ws://HOST:PORT/TOKEN as a lease gives it")
    return url, token


def leads_to_websocket(address: str) -> bool:
    """Whether an address leads through a tracker's WebSocket door."""
    return address.startswith((f"{_THROUGH}ws://", f"{_THROUGH}wss://"))


def data_address_beside(control: str) -> str:
    """The address of the data connection beside a relayed control connection."""
    there = parse(control)
    return str(RelayAddress(there.host, there.port, there.token, "data"))


def connect_socket(connecting: zmq.Socket[bytes], address: str) -> None:
    """Connect a ZeroMQ socket to an address, through the relay if it leads through one.

    Raises SetupError if the relay cannot be reached, or refuses.
    """
    if is_relayed(address):
        from tapml_rpc.relay.bridge import bridged

        address = bridged(open_stream(address, _DIAL_SECONDS))
    connecting.connect(address)


def open_stream(address: str, timeout: float) -> socket.socket:
    """A connected TCP socket to the device at the other end of a relay.

    Raises SetupError if the relay cannot be reached, or refuses.
    """
    there = parse(address)
    relay, path = (there.host, there.port), f"/{there.role}"
    return open_tunnel(relay, path, ticket(there.token), timeout)
