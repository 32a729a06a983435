"""The hello that a client begins with, and what the server's welcome says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tapml_rpc import wire
from tapml_rpc.bounds import Bounds
from tapml_rpc.failures import failure_from_wire
from tapml_targets.description_format import from_plain
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import ProtocolError

DOWNLOAD_WINDOW: Final = 16 << 20


def hello(kernel_deadline: float | None, lease: str) -> wire.Header:
    """The message.

    Parameters
    ----------
    kernel_deadline
        Longest time of one command in seconds; None leaves it to the server.
    lease
        Token of a tracker's lease; empty for none.
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
    """What a server said about itself and about the session that it opened.

    Attributes
    ----------
    version
        Of the protocol.
    features
        What it can do beyond that.
    device
        What it serves.
    bounds
        What a session may hold there.
    epoch
        Random bytes of the server's life.
    token
        The session's.
    data_address
        Where its data connection goes, as the server sees itself.
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
        """Read the answer to a hello.

        Parameters
        ----------
        address
            Who sent it, for people.

        Raises
        ------
        TapmlError
            What the server refused the session with.
        ProtocolError
            If it is no welcome.
        """
        reply = wire.unpack(packed)
        if reply.get("type") == "refused":
            raise failure_from_wire(reply.get("error"))
        if reply.get("type") != "welcome":
            raise ProtocolError(f"{address} is no tapml server: it sent no welcome")
        return cls(
            version=wire.integer(reply.get("version"), "version"),
            features=frozenset(wire.array(reply.get("features"), "features", 256)),
            device=from_plain(reply.get("device")),
            bounds=Bounds.from_wire(reply.get("bounds")),
            epoch=wire.octets(reply.get("epoch"), "epoch", 64),
            token=wire.octets(reply.get("session"), "session", 64),
            data_address=wire.text(reply.get("data_address"), "data address"),
        )
