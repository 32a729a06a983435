"""What a message is answered with that no session takes."""

from __future__ import annotations

from tapml_rpc import wire
from tapml_targets.errors import DeviceLostError, DeviceRestartedError


def check_epoch(header: wire.Header, epoch: bytes) -> None:
    """Raise DeviceRestartedError where a message was meant for another life of the server."""
    if header.get("epoch") != epoch:
        wire.octets(header.get("epoch"), "epoch", 64)
        raise DeviceRestartedError(
            "this server started after the session did: its handles mean nothing here; "
            "open a new session"
        )


def lost_session() -> DeviceLostError:
    """What a message for a session that is not there any more is answered with."""
    return DeviceLostError("the session has ended: it was closed, went silent, or its worker died")
