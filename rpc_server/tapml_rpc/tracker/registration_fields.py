"""Validates what peers report of themselves: a device's registration, a client's abilities."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from tapml_rpc import wire
from tapml_rpc.security.certificates import parse_fingerprint
from tapml_rpc.security.keys import is_key
from tapml_rpc.tracker.records import (
    BINDINGS,
    RELAYED,
    RELAYED_WEBSOCKET,
    VERSION,
    WEBSOCKET,
    Sender,
    on_this_machine,
    printable,
    reachable,
)
from tapml_targets.errors import InputError, ProtocolError

_SCHEMES: Final = ("tcp", "ws", "wss")


def check_version(header: wire.Header) -> None:
    """Raise ProtocolError if a peer speaks another version."""
    versions = wire.array(header.get("versions"), "versions", 64)
    if VERSION not in versions:
        raise ProtocolError(
            f"this tracker speaks version {VERSION}, the other end {str(versions)[:60]}; "
            "bring both to the same release of tapml"
        )


def lease_id(value: object) -> str:
    """Check a lease's id."""
    return wire.text(value, "lease", 64)


def load(data: object) -> dict[str, int]:
    """Check a device's load: a few numbers by name."""
    if type(data) is not dict or len(data) > 16:
        raise ProtocolError("a load is a map of at most 16 numbers")
    return {
        printable(wire.text(name, "load", 32)): wire.integer(value, "load")
        for name, value in data.items()
    }


def server_key(value: object) -> str:
    """Check the public key of a device's own server; empty for none."""
    key = wire.text(value, "server key", 64)
    if key and not is_key(key):
        raise InputError(
            "the device's `server_key` is not a key: expected the 40 characters that "
            "`tapml rpc keygen` printed, or an empty text"
        )
    return key


def certificate(value: object) -> str:
    """Check the fingerprint of a device's own certificate; empty for none."""
    text = wire.text(value, "certificate", 128)
    return parse_fingerprint(text) if text else ""


def bindings(value: object) -> frozenset[str]:
    """Check the bindings that a client speaks."""
    spoken = frozenset(map(str, wire.array(value, "bindings", 8)))
    if spoken.isdisjoint(BINDINGS):
        raise InputError(f"a client speaks one of {', '.join(BINDINGS)}, got {sorted(spoken)[:8]}")
    return spoken


def addresses(header: wire.Header, name: str, sender: Sender) -> tuple[str, ...]:
    """The addresses of a device; that of its additional WebSocket comes last."""
    given = [_device_address(header.get("address"))]
    beside = wire.text(header.get("websocket", ""), "websocket", 256)
    if beside:
        given.append(_device_address(beside))
        if not beside.startswith(("ws://", "wss://")):
            raise InputError(f"expected ws://HOST:PORT beside the address, got {beside!r}")
    if RELAYED_WEBSOCKET in given and sender.binding != WEBSOCKET:
        raise InputError(
            f"{RELAYED_WEBSOCKET!r} is for devices that register over WebSocket, "
            f"where they come for their clients as well; register with {RELAYED!r}"
        )
    addresses = tuple(reachable(address, sender.host) for address in given)
    if not sender.local and all(map(on_this_machine, addresses)):
        raise InputError(
            f"the device {name!r} is on another machine, and {' or '.join(addresses)} cannot be "
            "reached from here: bind to an address of its network, or register it with the relay"
        )
    return addresses


def _device_address(value: object) -> str:
    address = wire.text(value, "address", 256)
    if address in (RELAYED, RELAYED_WEBSOCKET):
        return address
    try:
        parts = urlsplit(address)
        good = parts.scheme in _SCHEMES and bool(parts.hostname) and bool(parts.port)
    except ValueError:
        good = False
    if not good or not address.isprintable():
        raise InputError(
            f"a device's address is tcp://HOST:PORT, ws://HOST:PORT, {RELAYED!r} or "
            f"{RELAYED_WEBSOCKET!r}, got {printable(address)!r}"
        )
    return address
