"""The tracker's records: senders, devices, leases, waiting requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from tapml_rpc import wire
from tapml_rpc.security.bind import bracketed, is_loopback
from tapml_rpc.tracker.requirements import Requirements
from tapml_targets.driver import DeviceDescription

VERSION: Final = 1
"""Version of the messages between a tracker, its devices and its clients."""
MAX_MESSAGE_BYTES: Final = 64 << 10
"""Longest message a tracker takes."""
MAX_DEVICES: Final = 256
MAX_WAITING: Final = 256
MAX_LEASES: Final = 1024
MAX_PER_CLIENT: Final = 16
MAX_SHARED: Final = 32
"""Leases that may share one device."""
MAX_PRIORITY: Final = 100
BEAT_SECONDS: Final = 1.0
"""How often a device and a holder send a sign of life, in seconds."""
HEARTBEAT_SECONDS: Final = 0.75
"""How often either end of a ZeroMQ connection asks the other for a sign of life."""
HEARTBEAT_TIMEOUT_SECONDS: Final = 2.0
"""A peer that gives none for so long, once asked, is gone."""
LEASE_SECONDS: Final = 15.0
"""A lease that is not renewed for so long has expired; its connection usually ends it sooner."""
RELAYED: Final = "relay"
"""The address of a device that is reached through the tracker, byte by byte over SOCKS."""
RELAYED_WEBSOCKET: Final = "relay+ws"
"""The same over WebSocket, message by message: for devices without another binding."""
TRACKER_PATH: Final = "/tracker"
"""Path of the WebSocket on which a device or a client talks with a tracker."""
LEG_PATH: Final = "/leg"
"""Path of the WebSocket with which a device connects for a client that waits at the tracker."""
ZMQ: Final = "zmq"
WEBSOCKET: Final = "websocket"
BINDINGS: Final = (ZMQ, WEBSOCKET)
"""The bindings that a peer may speak."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def is_device_name(name: str) -> bool:
    """Whether a device name is valid: letters, digits, ``.``, ``_`` and ``-``, at most 63."""
    return _NAME.fullmatch(name) is not None


def printable(text: str) -> str:
    """`text` without characters that control a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text)


def reachable(address: str, host: str) -> str:
    """A device's address, with `host` in it if the device listens on all its addresses."""
    parts = urlsplit(address)
    if parts.hostname not in ("0.0.0.0", "::"):  # noqa: S104 - looked for, not bound
        return address
    return parts._replace(netloc=f"{bracketed(host)}:{parts.port}").geturl()


def binding_of(address: str) -> str:
    """The binding of a device's address."""
    return ZMQ if address == RELAYED or address.startswith("tcp://") else WEBSOCKET


def on_this_machine(address: str) -> bool:
    """Whether an address is on loopback; a name other than ``localhost`` is not resolved."""
    host = urlsplit(address).hostname or ""
    try:
        return host == "localhost" or is_loopback(host)
    except ValueError:
        return False


def failure(kind: str, message: str) -> dict[str, str]:
    """An error in wire form, of a class of :mod:`tapml_targets.errors`."""
    return {"kind": kind, "message": message}


@dataclass(frozen=True)
class Sender:
    """Who sent a message.

    `key` is its connection, `identity` the public key it proved or ``loopback``, `host` the numeric
    address as the tracker sees it, `binding` what it speaks with the tracker.
    """

    key: bytes
    identity: str = "loopback"
    host: str = "127.0.0.1"
    binding: str = ZMQ

    @property
    def local(self) -> bool:
        """Whether it is on the tracker's own machine."""
        return is_loopback(self.host)


@dataclass
class Lease:
    """A device lent to a client, from the offer until the device has ended everything of it."""

    id: str
    token: str
    device: Device
    request: Waiting
    since: float
    address: str = ""
    """The device's address that its holder can use."""
    phase: str = "offered"
    """``offered`` until the device has accepted, ``held``, then ``clearing``."""
    deadline: float = 0.0
    """When the present phase ends by itself."""


@dataclass
class Device:
    """A registered device."""

    name: str
    sender: Sender
    life: bytes
    description: DeviceDescription
    plain: dict[str, Any]
    fingerprint: str
    addresses: tuple[str, ...]
    """In the order in which they are given out."""
    heard: float
    since: float
    server_key: str = ""
    certificate: str = ""
    load: dict[str, int] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    shunned_until: float = 0.0
    """It did not answer an offer, or declined it: not to be tried before."""

    @property
    def address(self) -> str:
        """The address that is shown."""
        return self.addresses[0]

    def address_for(self, request: Waiting) -> str:
        """The first address that a client can use; empty for none."""
        for address in self.addresses:
            near = on_this_machine(address) or (
                address == RELAYED_WEBSOCKET and not request.reaches_door
            )
            if binding_of(address) in request.bindings and (request.sender.local or not near):
                return address
        return ""


@dataclass
class Waiting:
    """A request, waiting or granted."""

    sender: Sender
    number: int
    wanted: Requirements
    exclusive: bool
    priority: int
    label: str
    bindings: frozenset[str] = frozenset((ZMQ,))
    reaches_door: bool = True
    """Whether it can connect to the tracker's WebSocket door from another machine."""
    order: int = 0
    told: tuple[Any, ...] = ()

    @property
    def rank(self) -> tuple[int, int]:
        """Its place in the queue: by priority, then by arrival."""
        return -self.priority, self.order


class Outlet(Protocol):
    """The effects of decisions: messages to peers, and what the relay lets through."""

    def send(self, key: bytes, header: wire.Header) -> None:
        """Send a message; a peer that cannot be reached is reported later."""

    def open_relay(self, lease: Lease) -> None:
        """Let the lease's holder through to its device."""

    def close_relay(self, lease: Lease) -> None:
        """Cut the connections of the lease's holder."""


Clock = Callable[[], float]
