"""What a tracker knows: its devices, their holders, the queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from msgspec import Meta

from tapml_rpc import wire
from tapml_rpc.security.credentials import Credentials
from tapml_rpc.tracker.connection import ask, open_connection
from tapml_rpc.tracker.records import MAX_DEVICES, VERSION, Load, Phrase, Word, printable_all
from tapml_targets.description import from_plain, to_plain
from tapml_targets.driver import DeviceDescription

_TIMEOUT_SECONDS: Final = 5.0


@dataclass(frozen=True)
class ListedLease:
    """A lease without its secret."""

    id: Word
    holder: Phrase
    identity: Phrase
    phase: Word
    age_seconds: float


@dataclass(frozen=True)
class ListedDevice:
    """A registered device.

    `fingerprint` is what verdicts depend on, as the tracker computes it. `address` is ``relay``
    or ``relay+ws`` for through the tracker; `websocket` is that of its additional binding, or
    empty. `load` is its last report: ``sessions``, ``device_bytes``.
    """

    name: Phrase
    description: DeviceDescription
    fingerprint: Phrase
    address: Phrase
    identity: Phrase
    load: Load
    registered_seconds: float
    heard_seconds: float
    leases: Annotated[tuple[ListedLease, ...], Meta(max_length=256)]
    websocket: Phrase = ""

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
            found += [_device(row) for row in map(printable_all, rows)]
            more = page.get("more") is True and bool(rows)
    finally:
        connection.close({"type": "goodbye"})
    return found


def _device(row: Any) -> ListedDevice:
    row = wire.record(row, dict[str, Any], "a listed device")
    row["description"] = from_plain(row.get("device"))
    return wire.record(row, ListedDevice, "a listed device")
