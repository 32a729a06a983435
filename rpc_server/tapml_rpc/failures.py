"""Answers to messages that no session takes."""

from __future__ import annotations

import traceback
from contextlib import suppress
from typing import Any, Final

from tapml_rpc import wire
from tapml_rpc.standard_error import print_fault
from tapml_targets import errors
from tapml_targets.errors import (
    DeviceLostError,
    DeviceRestartedError,
    ProtocolError,
    RemoteError,
    SetupError,
    TapmlError,
)

_CLASSES: Final[dict[str, type[TapmlError]]] = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, TapmlError)
}
_MESSAGE_CHARACTERS: Final = 16 << 10
TRACEBACK_CHARACTERS: Final = 16 << 10
LOG_CHARACTERS: Final = 64 << 10
_COMMAND_CHARACTERS: Final = 400


def render_command(command: object) -> str:
    """A command in readable form, shortened."""
    if isinstance(command, str):
        return command[:_COMMAND_CHARACTERS]
    if not isinstance(command, list) or not command:
        return repr(command)[:_COMMAND_CHARACTERS]
    name, *arguments = command
    shown = ", ".join(repr(argument)[:120] for argument in arguments)
    return f"{name}({shown})"[:_COMMAND_CHARACTERS]


def failure_to_wire(error: BaseException, command: object = "", index: int = 0) -> dict[str, Any]:
    """Describe an error raised on the device's side.

    Errors outside the tree (a driver's, ``MemoryError``) become ``RemoteError`` with the original
    class in the message. One that came from another machine keeps its details.
    """
    kind = type(error).__name__
    message = str(error)
    if _CLASSES.get(kind) is not type(error):
        message = f"{kind}: {message}" if message else kind
        kind = "RemoteError"
    return {
        "kind": kind,
        "message": _shorten(message, _MESSAGE_CHARACTERS),
        "traceback": _shorten(
            getattr(error, "remote_traceback", "") or "".join(traceback.format_exception(error)),
            TRACEBACK_CHARACTERS,
        ),
        "command": render_command(command or getattr(error, "command", "")),
        "log": _shorten(str(getattr(error, "driver_log", "") or ""), LOG_CHARACTERS),
        "index": index,
    }


def failure_from_wire(data: Any) -> TapmlError:
    """Rebuild an error that a peer described; unknown kinds become ``RemoteError``."""
    given = data if isinstance(data, dict) else {}

    def part(name: str) -> str:
        value = given.get(name, "")
        return value if isinstance(value, str) else str(value)[:_MESSAGE_CHARACTERS]

    message = part("message") or "the device reported an error without a message"
    kind = _CLASSES.get(part("kind"), RemoteError)
    remote_traceback, command, log = part("traceback"), part("command"), part("log")
    error: TapmlError
    if issubclass(kind, RemoteError):
        error = kind(message, remote_traceback=remote_traceback, command=command, driver_log=log)
    else:
        error = kind(message)
        # The classes outside RemoteError have no such fields; the facts still travel with them.
        vars(error).update(remote_traceback=remote_traceback, command=command, driver_log=log)
    if command:
        error.add_note(f"remote command: {command}")
    if log and log not in message:
        error.add_note(f"driver log:\n{log}")
    if remote_traceback:
        error.add_note(f"remote traceback:\n{remote_traceback.rstrip()}")
    return error


def is_out_of_memory(error: TapmlError) -> bool:
    """Whether a command on tensors failed because the device's side has no memory for it."""
    return isinstance(error, SetupError) or str(error).startswith(MemoryError.__name__)


def _shorten(value: str, bound: int) -> str:
    """Keep the head and the tail: a traceback's end and a log's start matter most."""
    if len(value) <= bound:
        return value
    half = bound // 2 - 20
    return f"{value[:half]}\n[... {len(value) - 2 * half} characters left out ...]\n{value[-half:]}"


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


def show_fault(error: Exception) -> None:
    """Print an internal fault, which must be seen; peers' faults are reported to them alone."""
    if not isinstance(error, TapmlError):
        print_fault(error)


def error_reply(error: Exception, header: object) -> bytes:
    """The answer to a message of this `header` that is not taken; b"" if even that is too long."""
    reply: wire.Header = {"type": "error", "error": failure_to_wire(error)}
    sequence = header.get("sequence") if isinstance(header, dict) else None
    if type(sequence) is int and 0 <= sequence <= wire.MAX_INTEGER:
        reply["sequence"] = sequence
    with suppress(ProtocolError):
        return wire.pack(reply)
    return b""
