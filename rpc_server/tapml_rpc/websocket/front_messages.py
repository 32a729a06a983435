"""The front parses these messages, and sends these: errors, and no welcomes."""

from __future__ import annotations

import traceback

from tapml_rpc import wire
from tapml_rpc.failures import failure_to_wire
from tapml_rpc.scattered import Chunk, Scattered
from tapml_rpc.websocket import frames
from tapml_rpc.websocket.outbox import Outbox
from tapml_targets.errors import ProtocolError, TapmlError


def split_message(message: Chunk | str) -> tuple[memoryview, Chunk]:
    """Header and chunk; raises ProtocolError for text and for malformed messages."""
    if isinstance(message, str):
        raise ProtocolError("a text message came; messages are binary")
    if isinstance(message, Scattered):
        return frames.split_scattered(message)
    return frames.split(message)


def control_header(message: Chunk | str) -> wire.Header:
    """The header of a control message; raises as :func:`split_message` does."""
    packed, chunk = split_message(message)
    if chunk:
        raise ProtocolError("a control message has no chunk")
    return wire.unpack(packed)


def message_of(header: wire.Header) -> bytes:
    """A complete message without a chunk."""
    return frames.head(wire.pack(header), 0)


def refuse(outbox: Outbox, error: Exception) -> None:
    """Answer a control message that is refused."""
    outbox.put(message_of({"type": "refused", "error": failure_to_wire(error)}))


def answer_error(outbox: Outbox, error: Exception, sequence: object) -> None:
    """Answer a data message that is refused; `sequence` if one could be read."""
    reply: wire.Header = {"type": "error", "error": failure_to_wire(error)}
    if type(sequence) is int and 0 <= sequence <= wire.MAX_INTEGER:
        reply["sequence"] = sequence
    outbox.put(message_of(reply))


def show_ours(error: Exception) -> None:
    """Print an internal fault; peers' faults are reported to them alone."""
    if not isinstance(error, TapmlError):
        # An internal fault must cost only one message, and must be seen.
        traceback.print_exc()
