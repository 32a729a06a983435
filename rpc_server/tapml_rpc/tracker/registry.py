"""How a tracker handles a message, without sockets or a clock."""

from __future__ import annotations

from typing import Any, Final

from tapml_rpc import wire
from tapml_rpc.security.bind import SCHEMES, reachable, split_address
from tapml_rpc.security.certificates import parse_fingerprint
from tapml_rpc.security.keys import is_key
from tapml_rpc.tracker.leases import Leases
from tapml_rpc.tracker.records import (
    BEAT_SECONDS,
    BINDINGS,
    MAX_DEVICES,
    RELAYED,
    RELAYED_WEBSOCKET,
    VERSION,
    WEBSOCKET,
    Clock,
    Device,
    Load,
    Outlet,
    Requirements,
    Sender,
    Waiting,
    is_device_name,
    on_this_machine,
    printable,
    printable_all,
)
from tapml_targets.description import fingerprint, from_plain, to_plain
from tapml_targets.errors import InputError, ProtocolError, SetupError

SILENCE_SECONDS: Final = 15.0
_LABEL_CHARACTERS: Final = 128
_LIFE_BYTES: Final = 16
_PAGE_BYTES: Final = 256 << 10


class Registry:
    """Devices, leases and the queue behind one :meth:`receive`.

    `local_door`: the WebSocket door is on loopback. Clients reach it from elsewhere by their own
    means (a tunnel, a proxy), which a client that came by ZeroMQ does not know.
    """

    def __init__(self, outlet: Outlet, clock: Clock, *, local_door: bool = False) -> None:
        self._local_door = local_door
        self.devices: dict[str, Device] = {}
        self.leases = Leases(self.devices, outlet, clock)
        self._by_key: dict[bytes, Device] = {}
        self._outlet = outlet
        self._clock = clock

    def receive(self, sender: Sender, header: wire.Header) -> None:
        """Handle one message of a peer; raises TapmlError if it is refused and changes nothing."""
        kind = header.get("type")
        if kind == "register":
            self._register(sender, header)
        elif kind == "request":
            self._request(sender, header)
        elif kind == "list":
            self._list(sender, header)
        elif kind in ("load", "lease-accepted", "lease-declined", "lease-cleared"):
            self._hear_device(sender, header, kind)
        elif kind == "renew":
            leases = wire.array(header.get("leases"), "leases", 64)
            self.leases.renew(sender.key, [_lease_id(lease) for lease in leases])
            self._pong(sender)
        elif kind == "release":
            self.leases.release(sender.key, _lease_id(header.get("lease")))
        elif kind == "cancel":
            self.leases.cancel(sender.key, wire.integer(header.get("request"), "request"))
        elif kind == "goodbye":
            self.gone(sender.key, "it said goodbye")
        elif kind == "hello":
            raise SetupError(
                "this is a tracker, not a device: set TAPML_TRACKER=ADDRESS and give --device "
                "tracker:NAME; `tapml devices --tracker ADDRESS` lists the names"
            )
        else:
            raise ProtocolError(f"unknown message type {str(kind)[:60]!r}")

    def gone(self, key: bytes, why: str) -> None:
        """A peer's connection is gone: everything that depended on it ends."""
        device = self._by_key.get(key)
        if device is not None:
            self._drop(device, why)
        self.leases.peer_gone(key, f"its holder is gone: {why}")
        self.leases.changed = True

    def tick(self) -> None:
        """Handle timeouts; call it ten times a second."""
        now = self._clock()
        for device in list(self.devices.values()):
            if now - device.heard > SILENCE_SECONDS:
                self._drop(device, f"silent for {SILENCE_SECONDS:g} s")
        self.leases.tick()

    def excuse(self, seconds: float) -> None:
        """Do not count a time in which the tracker itself was stopped as silence."""
        for device in self.devices.values():
            device.heard += seconds
        self.leases.excuse(seconds)

    def peers(self) -> set[bytes]:
        """The connections that something depends on."""
        return self._by_key.keys() | self.leases.peers()

    def _register(self, sender: Sender, header: wire.Header) -> None:
        _check_version(header)
        name = wire.text(header.get("name"), "name", 256)
        if not is_device_name(name):
            raise InputError(
                "a device's name is 1 to 63 letters, digits, '.', '_' or '-', "
                f"beginning with a letter or a digit; got {printable(name)!r}"
            )
        certificate = wire.text(header.get("certificate", ""), "certificate", 128)
        life = wire.octets(header.get("life"), "life", 64)
        if len(life) != _LIFE_BYTES:
            raise ProtocolError(f"life must be {_LIFE_BYTES} random bytes, got {len(life)}")
        description = from_plain(header.get("device"))
        now = self._clock()
        # All of it before anything is removed: a refused message changes nothing.
        device = Device(
            name=name,
            sender=sender,
            life=life,
            description=description,
            plain=to_plain(description),
            fingerprint=fingerprint(description),
            addresses=_addresses(header, name, sender),
            heard=now,
            since=now,
            server_key=_server_key(header.get("server_key", "")),
            certificate=certificate and parse_fingerprint(certificate),
            load=_load(header.get("load", {})),
        )
        self._make_way(name, sender, life)
        mine = self._by_key.get(sender.key)
        if mine is not None:
            self._drop(mine, "registered again")
        self.devices[name] = self._by_key[sender.key] = device
        reply = {"type": "registered", "version": VERSION, "name": name}
        self._outlet.send(sender.key, {**reply, "beat_seconds": BEAT_SECONDS})
        self.leases.changed = True

    def _make_way(self, name: str, sender: Sender, life: bytes) -> None:
        """Remove the device's own older registration; refuse a name that is another's."""
        older = self.devices.get(name)
        if older is None:
            if len(self.devices) >= MAX_DEVICES:
                raise SetupError(f"this tracker has {MAX_DEVICES} devices and takes no more")
            return
        if (older.life, older.sender.identity) != (life, sender.identity):
            ago = self._clock() - older.heard
            raise InputError(
                f"a device called {name!r} is registered and was heard {ago:.1f} s ago; "
                "end it, or give this one another name"
            )
        self._drop(older, "it registered again")

    def _drop(self, device: Device, why: str) -> None:
        del self.devices[device.name]
        del self._by_key[device.sender.key]
        self.leases.device_gone(device, why)
        self.leases.changed = True

    def _hear_device(self, sender: Sender, header: wire.Header, kind: str) -> None:
        device = self._by_key.get(sender.key)
        if device is None:
            # It registers again: this tracker may be a new one.
            self._outlet.send(sender.key, {"type": "unknown"})
            return
        device.heard = self._clock()
        if kind == "load":
            device.load = _load(header.get("load"))
            self._pong(sender)
        elif kind == "lease-accepted":
            self.leases.accepted(device, _lease_id(header.get("lease")))
        elif kind == "lease-declined":
            self.leases.declined(device, _lease_id(header.get("lease")))
        else:
            self.leases.cleared(device, _lease_id(header.get("lease")))

    def _request(self, sender: Sender, header: wire.Header) -> None:
        _check_version(header)
        self.leases.request(
            Waiting(
                sender=sender,
                number=wire.integer(header.get("request"), "request"),
                wanted=Requirements.from_wire(header.get("wanted")),
                label=printable(wire.text(header.get("label"), "label", _LABEL_CHARACTERS)),
                bindings=_bindings(header.get("bindings", [sender.binding])),
                reaches_door=sender.binding == WEBSOCKET or not self._local_door,
            )
        )

    def _list(self, sender: Sender, header: wire.Header) -> None:
        _check_version(header)
        after = wire.text(header.get("after", ""), "after", 256)
        rows: list[dict[str, Any]] = []
        nbytes = 0
        names = sorted(name for name in self.devices if name > after)
        for name in names:
            row = self._describe(self.devices[name])
            nbytes += len(wire.pack(row))
            if rows and nbytes > _PAGE_BYTES:
                break
            rows.append(row)
        page: wire.Header = {"type": "devices", "devices": rows, "more": len(rows) < len(names)}
        self._outlet.send(sender.key, {**page, "queue": self.leases.queue()})

    def _describe(self, device: Device) -> dict[str, Any]:
        now = self._clock()
        return {
            "name": device.name,
            "device": device.plain,
            "fingerprint": device.fingerprint,
            "address": device.address,
            "websocket": "".join(device.addresses[1:]),
            "identity": device.sender.identity,
            "load": device.load,
            "registered_seconds": round(now - device.since, 1),
            "heard_seconds": round(now - device.heard, 1),
            "leases": [
                {
                    "id": lease.id,
                    "holder": lease.request.label,
                    "identity": lease.request.sender.identity,
                    "exclusive": True,
                    "phase": lease.phase,
                    "age_seconds": round(now - lease.since, 1),
                }
                for lease in device.leases.values()
            ],
        }

    def _pong(self, sender: Sender) -> None:
        self._outlet.send(sender.key, {"type": "pong"})


def _check_version(header: wire.Header) -> None:
    """Raise ProtocolError if a peer speaks another version."""
    versions = wire.array(header.get("versions"), "versions", 64)
    if VERSION not in versions:
        raise ProtocolError(
            f"this tracker speaks version {VERSION}, the other end {str(versions)[:60]}; "
            "bring both to the same release of tapml"
        )


def _lease_id(value: object) -> str:
    """Check a lease's id."""
    return wire.text(value, "lease", 64)


def _load(data: object) -> dict[str, int]:
    """Check a device's load: a few numbers by name."""
    load: dict[str, int] = wire.record(printable_all(data), Load, "a load")
    return load


def _server_key(value: object) -> str:
    """Check the public key of a device's own server; empty for none."""
    key = wire.text(value, "server key", 64)
    if key and not is_key(key):
        raise InputError(
            "the device's `server_key` is not a key: expected the 40 characters that "
            "`tapml rpc keygen` printed, or an empty text"
        )
    return key


def _bindings(value: object) -> frozenset[str]:
    """Check the bindings that a client speaks."""
    spoken = frozenset(map(str, wire.array(value, "bindings", 8)))
    if spoken.isdisjoint(BINDINGS):
        raise InputError(f"a client speaks one of {', '.join(BINDINGS)}, got {sorted(spoken)[:8]}")
    return spoken


def _addresses(header: wire.Header, name: str, sender: Sender) -> tuple[str, ...]:
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
    there = split_address(address, SCHEMES)
    if there is None or not there[2]:
        raise InputError(
            f"a device's address is tcp://HOST:PORT, ws://HOST:PORT, {RELAYED!r} or "
            f"{RELAYED_WEBSOCKET!r}, got {printable(address)!r}"
        )
    return address
