"""What a tracker knows: its devices, their holders, the queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tapml_rpc import wire
from tapml_rpc.security.credentials import Credentials
from tapml_rpc.tracker.connection import ask, open_connection
from tapml_rpc.tracker.records import MAX_DEVICES, VERSION, printable
from tapml_targets.description import from_plain, to_plain
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import ProtocolError

_TIMEOUT_SECONDS: Final = 5.0


@dataclass(frozen=True)
class ListedLease:
    """A lease without its secret."""

    id: str
    holder: str
    identity: str
    phase: str
    age_seconds: float


@dataclass(frozen=True)
class ListedDevice:
    """A registered device.

    `fingerprint` is what verdicts depend on, as the tracker computes it. `address` is ``relay``
    or ``relay+ws`` for through the tracker; `websocket` is that of its additional binding, or
    empty. `load` is its last report: ``sessions``, ``device_bytes``.
    """

    name: str
    description: DeviceDescription
    fingerprint: str
    address: str
    websocket: str
    identity: str
    load: dict[str, int]
    registered_seconds: float
    heard_seconds: float
    leases: tuple[ListedLease, ...]

    def to_plain(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "spec": f"tracker:{self.name}",
            **to_plain(self.description),
            "fingerprint": self.fingerprint,
            "address": self.address,
            "websocket": self.websocket,
            "identity": self.identity,
            "load": self.load,
            "registered_seconds": self.registered_seconds,
            "heard_seconds": self.heard_seconds,
            "leases": [dict(vars(lease)) for lease in self.leases],
        }


def list_devices(
    tracker: str, *, credentials: Credentials | None = None, timeout: float = _TIMEOUT_SECONDS
) -> list[ListedDevice]:
    """The devices of a tracker, by name; raises SetupError if none answers within `timeout`."""
    connection = open_connection(tracker, credentials, timeout=timeout)
    found: list[ListedDevice] = []
    try:
        more = True
        while more and len(found) <= MAX_DEVICES:
            after = found[-1].name if found else ""
            page = ask(connection, {"type": "list", "versions": [VERSION], "after": after}, timeout)
            rows = wire.array(page.get("devices"), "devices", MAX_DEVICES)
            found += [_device(row) for row in rows]
            more = page.get("more") is True and bool(rows)
    finally:
        connection.close({"type": "goodbye"})
    return found


def _device(row: Any) -> ListedDevice:
    data = _map(row)
    return ListedDevice(
        name=_text(data, "name"),
        description=from_plain(data.get("device")),
        fingerprint=_text(data, "fingerprint"),
        address=_text(data, "address"),
        websocket=printable(wire.text(data.get("websocket", ""), "websocket")),
        identity=_text(data, "identity"),
        load={
            printable(wire.text(name, "load")): wire.integer(value, "load")
            for name, value in _map(data.get("load")).items()
        },
        registered_seconds=_seconds(data, "registered_seconds"),
        heard_seconds=_seconds(data, "heard_seconds"),
        leases=tuple(
            ListedLease(
                id=_text(lease, "id"),
                holder=_text(lease, "holder"),
                identity=_text(lease, "identity"),
                phase=_text(lease, "phase"),
                age_seconds=_seconds(lease, "age_seconds"),
            )
            for lease in map(_map, wire.array(data.get("leases"), "leases", 256))
        ),
    )


def _map(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise ProtocolError("the tracker's list has an entry that is not a map")
    return value


def _text(data: dict[str, Any], name: str) -> str:
    return printable(wire.text(data.get(name), name))


def _seconds(data: dict[str, Any], name: str) -> float:
    value = data.get(name)
    if type(value) not in (int, float):
        raise ProtocolError(f"{name} must be a number of seconds")
    return float(value)  # type: ignore[arg-type]
