"""The tracker's records: senders, devices, leases, waiting requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final, Protocol, TypeAlias
from urllib.parse import urlsplit

from msgspec import Meta

from tapml_rpc import wire
from tapml_rpc.security.bind import is_loopback
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import InputError, ProtocolError
from tapml_targets.limits import Limits

# min_buffer_bytes asks for a device whose max_buffer_bytes is at least that.
LIMITS: Final[Mapping[str, str]] = {
    "min_" + each.name.removeprefix("max_"): each.name
    for each in fields(Limits)
    if type(each.default) is int
}
Word: TypeAlias = Annotated[str, Meta(max_length=64)]
Phrase: TypeAlias = Annotated[str, Meta(max_length=256)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=wire.MAX_INTEGER)]
Load: TypeAlias = Annotated[dict[Annotated[str, Meta(max_length=32)], Count], Meta(max_length=16)]
"""What a device reports of itself: a few numbers by name."""


@dataclass(frozen=True)
class Requirements:
    """What a device must be and have; an empty `name` or `kind` (platform) means any.

    `limits` are least values by name: ``min_buffer_bytes``, ``min_memory_bytes``,
    ``min_shared_memory_bytes`` in bytes, ``min_threads_per_block``, ``min_arguments``. A limit its
    platform does not state counts as met.
    """

    name: Word = ""
    kind: Word = ""
    features: Annotated[frozenset[Word], Meta(max_length=32)] = frozenset()
    limits: dict[Word, Count] = field(default_factory=dict)

    def unmet(self, name: str, device: DeviceDescription) -> str:
        """What a device lacks, in words; empty if it lacks nothing."""
        if self.name and self.name != name:
            return f"its name is not {self.name}"
        if self.kind and self.kind != device.platform:
            return f"it is {device.platform}, not {self.kind}"
        missing = self.features - device.limits.features
        if missing:
            return f"it has no {', '.join(sorted(missing))}"
        for asked, least in self.limits.items():
            there = getattr(device.limits, LIMITS[asked])
            if 0 < there < least:
                return f"its {LIMITS[asked]} is {there}, not {least}"
        return ""

    def __str__(self) -> str:
        parts = [f"{asked} {least}" for asked, least in self.limits.items()]
        if self.features:
            parts.insert(0, f"with {', '.join(sorted(self.features))}")
        if self.kind:
            parts.insert(0, f"of kind {self.kind}")
        if self.name:
            parts.insert(0, f"named {self.name}")
        return "a device " + " and ".join(parts) if parts else "any device"

    def to_wire(self) -> dict[str, Any]:
        """Plain data for a request."""
        return {
            "name": self.name,
            "kind": self.kind,
            "features": sorted(self.features),
            "limits": dict(self.limits),
        }

    @classmethod
    def from_wire(cls, data: Any) -> Requirements:
        """Check a peer's requirements; raises ProtocolError, or InputError for an unknown limit."""
        return cls.of(**vars(wire.record(data, cls, "requirements")))

    @classmethod
    def of(
        cls,
        name: str = "",
        kind: str = "",
        features: Iterable[str] = (),
        limits: Mapping[str, int] | None = None,
    ) -> Requirements:
        """Requirements; raises InputError, which lists the names of limits that are known."""
        unknown = sorted(set(limits or ()) - LIMITS.keys())
        if unknown:
            raise InputError(f"no limit is called {unknown[0]!r}; there are {', '.join(LIMITS)}")
        return cls(name, kind, frozenset(features), dict(limits or {}))


VERSION: Final = 2
"""Version of the messages between a tracker, its devices and its clients."""
MAX_MESSAGE_BYTES: Final = 64 << 10
"""Longest message a tracker takes."""
MAX_DEVICES: Final = 256
MAX_WAITING: Final = 256
MAX_LEASES: Final = 1024
MAX_PER_CLIENT: Final = 16
BEAT_SECONDS: Final = 1.0
"""How often a device and a holder send a sign of life, in seconds."""
HEARTBEAT_SECONDS: Final = 0.75
"""How often either end of a ZeroMQ connection asks the other for a sign of life."""
HEARTBEAT_TIMEOUT_SECONDS: Final = 2.0
"""A peer that gives none for so long, once asked, is gone."""
LEASE_SECONDS: Final = 15.0
"""A lease that is not renewed for so long has expired; its connection usually ends it sooner."""
RELAYED: Final = "relay"
"""The address of a device that is reached through the tracker, byte by byte."""
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

_MAX_DEPTH: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def is_device_name(name: str) -> bool:
    """Whether a device name is valid: letters, digits, ``.``, ``_`` and ``-``, at most 63."""
    return _NAME.fullmatch(name) is not None


def printable(text: str) -> str:
    """`text` without characters that control a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text)


def printable_all(value: Any) -> Any:
    """The same for every text in plain data, which a peer may have nested as deep as it likes."""
    return _printable_all(value, _MAX_DEPTH)


def _printable_all(value: Any, depth: int) -> Any:
    if not depth:
        raise ProtocolError(f"values nested deeper than {_MAX_DEPTH}")
    if isinstance(value, dict):
        return {
            _printable_all(name, depth - 1): _printable_all(each, depth - 1)
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [_printable_all(each, depth - 1) for each in value]
    return printable(value) if isinstance(value, str) else value


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
    token: str = field(repr=False)
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
    label: str
    bindings: frozenset[str] = frozenset((ZMQ,))
    reaches_door: bool = True
    """Whether it can connect to the tracker's WebSocket door from another machine."""
    order: int = 0
    told: tuple[Any, ...] = ()


class Outlet(Protocol):
    """The effects of decisions: messages to peers, and what the relay lets through."""

    def send(self, key: bytes, header: wire.Header) -> None:
        """Send a message; a peer that cannot be reached is reported later."""

    def open_relay(self, lease: Lease) -> None:
        """Let the lease's holder through to its device."""

    def close_relay(self, lease: Lease) -> None:
        """Cut the connections of the lease's holder."""


Clock = Callable[[], float]
