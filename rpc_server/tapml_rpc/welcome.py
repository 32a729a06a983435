"""A client's hello, and the server's welcome with its bounds and features."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from tapml_rpc import wire
from tapml_rpc.failures import failure_from_wire
from tapml_targets.description import from_plain
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import ProtocolError


@dataclass(frozen=True)
class Bounds:
    """Bounds of one server, sent in its welcome; PROTOCOL.md says what each of them limits."""

    chunk_bytes: int = wire.MAX_CHUNK_BYTES
    commands: int = 4096
    unanswered: int = 64
    upload_window: int = 16 << 20
    download_window: int = 64 << 20
    handles: int = 65536
    session_bytes: int = 64 << 30
    library_bytes: int = 256 << 20
    sessions: int = 32
    programs: int = 64
    program_commands: int = 1024
    program_bytes: int = 4 << 20

    def to_wire(self) -> dict[str, int]:
        """Plain data for the welcome."""
        return asdict(self)

    @classmethod
    def from_wire(cls, data: Any) -> Bounds:
        """Check a welcome's bounds, ignoring unknown ones; raises ProtocolError."""
        given = data if isinstance(data, dict) else {}
        return cls(
            **{
                field.name: wire.integer(given.get(field.name), f"bound {field.name!r}")
                for field in fields(cls)
            }
        )


DOWNLOAD_WINDOW: Final = 16 << 20


def hello(kernel_deadline: float | None, lease: str) -> wire.Header:
    """The hello message; `lease` is the token of a tracker's lease, empty for none.

    `kernel_deadline` is the longest time of one command in seconds; None leaves it to the server.
    """
    message: wire.Header = {
        "type": "hello",
        "versions": [wire.VERSION],
        "features": [],
        "download_window": DOWNLOAD_WINDOW,
    }
    if kernel_deadline is not None:
        message["kernel_deadline"] = kernel_deadline
    if lease:
        message["lease"] = lease
    return message


@dataclass(frozen=True)
class Welcome:
    """What a server reports of itself and of the session that it opened.

    `features` are beyond the protocol's `version`. `bounds` limit the session; `epoch` is random
    and identifies the server's lifetime; `token` is the session's. `data_address` is that of the
    data connection, as the server sees itself.
    """

    version: int
    features: frozenset[str]
    device: DeviceDescription
    bounds: Bounds
    epoch: bytes
    token: bytes
    data_address: str

    @classmethod
    def from_wire(cls, packed: bytes | memoryview, address: str) -> Welcome:
        """Parse the answer to a hello from `address`.

        Raises the error with which the server refused the session, or ProtocolError if it is not a
        welcome.
        """
        reply = wire.unpack(packed)
        if reply.get("type") == "refused":
            raise failure_from_wire(reply.get("error"))
        if reply.get("type") != "welcome":
            raise ProtocolError(f"{address} is not a tapml server: it sent no welcome")
        version = wire.integer(reply.get("version"), "version")
        if version != wire.VERSION:
            raise ProtocolError(
                f"{address} speaks protocol version {version}, this client {wire.VERSION}; bring "
                "both to the same release of tapml"
            )
        return cls(
            version=version,
            features=frozenset(wire.array(reply.get("features"), "features", 256)),
            device=from_plain(reply.get("device")),
            bounds=Bounds.from_wire(reply.get("bounds")),
            epoch=wire.octets(reply.get("epoch"), "epoch", 64),
            token=wire.octets(reply.get("session"), "session", 64),
            data_address=wire.text(reply.get("data_address"), "data address"),
        )
