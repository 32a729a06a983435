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


def lost_session(why: str = "") -> DeviceLostError:
    """What a message for a session that is not there any more is answered with."""
    why = why or "it was closed, went silent, or its worker died"
    return DeviceLostError(f"the session has ended: {why}")
