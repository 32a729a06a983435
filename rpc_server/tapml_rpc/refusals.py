"""Answers to messages that no session takes."""

from __future__ import annotations

from contextlib import suppress

from tapml_rpc import wire
from tapml_rpc.failures import failure_to_wire
from tapml_targets.errors import DeviceLostError, DeviceRestartedError, ProtocolError


def check_epoch(header: wire.Header, epoch: bytes) -> None:
    """Raise DeviceRestartedError for a message to an earlier lifetime of the server."""
    if header.get("epoch") != epoch:
        wire.octets(header.get("epoch"), "epoch", 64)
        raise DeviceRestartedError(
            "this server started after the session did: its handles mean nothing here; "
            "open a new session"
        )


def lost_session(why: str = "") -> DeviceLostError:
    """The error for a message of a session that has ended."""
    why = why or "it was closed, went silent, or its worker died"
    return DeviceLostError(f"the session has ended: {why}")


def error_reply(error: Exception, header: object) -> bytes:
    """The answer to a message that cannot be taken, b"" if even that is too long.

    `header` is the message's, as far as it was understood.
    """
    reply: wire.Header = {"type": "error", "error": failure_to_wire(error)}
    sequence = header.get("sequence") if isinstance(header, dict) else None
    if type(sequence) is int and 0 <= sequence <= wire.MAX_INTEGER:
        reply["sequence"] = sequence
    with suppress(ProtocolError):
        return wire.pack(reply)
    return b""
