"""Why a ZeroMQ connection failed, in words for the caller."""

from __future__ import annotations

import socket
import time
from shlex import quote
from typing import Any, Final, TypeAlias

import zmq
from zmq.utils.monitor import recv_monitor_message

from tapml_rpc.security.curve import ClientCurve
from tapml_targets.errors import SetupError, TapmlError

_GREETING_BYTES: Final = 64
_SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
_VERSION: Final = b"\x03\x00"
_MECHANISM: Final = slice(12, 32)


def greeted_mechanism(address: str, seconds: float) -> str | None:
    """What ``tcp://host:port`` greets with: NULL, CURVE, PLAIN; None for another greeting."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    deadline = time.monotonic() + seconds
    heard = b""
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds) as peer:
            # The rest of ours, with a mechanism it may refuse, is never sent.
            peer.sendall(_SIGNATURE + _VERSION)
            while len(heard) < _GREETING_BYTES:
                peer.settimeout(max(0.001, deadline - time.monotonic()))
                part = peer.recv(_GREETING_BYTES - len(heard))
                if not part:
                    return None
                heard += part
    except (OSError, ValueError):
        return None
    if heard[0] != _SIGNATURE[0] or heard[9] != _SIGNATURE[9]:
        return None
    return heard[_MECHANISM].rstrip(b"\0").decode("ascii", "replace")


MONITORED: Final = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
# A wrong key is refused at every try, tries come every 0.1 to 0.2 s; a tunnel whose far end is
# about to start looks the same for a moment.
_SETTLED_SECONDS: Final = 1.5
_NOT_ADMITTED: Final = 400
_VARIABLE: Final = "TAPML_RPC_SERVER_KEY"
_GREETING_SECONDS: Final = 1.0

Socket: TypeAlias = zmq.Socket[bytes]


def handshake_failure(
    event: dict[str, Any],
    address: str,
    curve: ClientCurve | None = None,
    *,
    variable: str = _VARIABLE,
) -> TapmlError | None:
    """What a monitor event of a client's socket means, with what to do next; None for other events.

    `event` comes from ``recv_monitor_message``; `curve` is what the socket connected with;
    `variable` names the environment's variable for the other end's public key.
    """
    kind, value = event["event"], int(event["value"])
    if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return _not_admitted(value, address, curve)
    if kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        return _no_common_language(value, address, curve, variable)
    if kind == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        return _hung_up(address, curve)
    return None


def _not_admitted(status: int, address: str, curve: ClientCurve | None) -> TapmlError:
    if status != _NOT_ADMITTED or curve is None:
        return SetupError(
            f"the server at {address} admits no clients now: it cannot read its list of clients; "
            "what it prints says why"
        )
    return SetupError(
        f"the server at {address} does not admit this client's key {curve.keys.name!r}. Run there: "
        f"tapml rpc keygen --authorize={quote(curve.keys.public)} --name {curve.keys.name}"
    )


def _no_common_language(
    value: int, address: str, curve: ClientCurve | None, variable: str
) -> TapmlError:
    if value != zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
        return SetupError(
            f"what answers at {address} does not speak ZeroMQ as a tapml server does; is it the "
            "address that `tapml rpc serve` printed?"
        )
    return _without_keys(address, variable) if curve is None else _without_encryption(address)


def _without_keys(address: str, variable: str) -> TapmlError:
    return SetupError(
        f"the server at {address} wants keys and none were given: make some with "
        "`tapml rpc keygen`, have the public one admitted there, and connect with them and "
        f"the server's public key (TAPML_RPC_KEY, {variable})"
    )


def _without_encryption(address: str) -> TapmlError:
    return SetupError(
        f"the server at {address} speaks without encryption, and keys were given: it is not the "
        "server these keys are for, or was started without its own; nothing was sent"
    )


def _hung_up(address: str, curve: ClientCurve | None) -> TapmlError:
    if curve is None:
        return SetupError(
            f"{address} takes connections and drops them at once: no tapml server is behind it; "
            "start one with `tapml rpc serve`"
        )
    return SetupError(
        f"the server at {address} is not the one whose public key was given ({curve.server}), or "
        "a tunnel ends in nothing there; nothing was sent. Compare with what `tapml rpc serve` "
        "printed there, or with its .public file"
    )


def _dropped(address: str) -> TapmlError:
    return SetupError(
        f"{address} took the connection and dropped it without a welcome: what is there does not "
        "speak ZeroMQ as a tapml server does, or it has just ended. Is it the address that "
        "`tapml rpc serve` printed?"
    )


class HandshakeWatch:
    """Checks whether a welcome may still come; `monitor` has the events :data:`MONITORED`."""

    def __init__(self, monitor: Socket, address: str, curve: ClientCurve | None) -> None:
        self.hint: TapmlError | None = None
        """The last failure that may still pass, for when the wait is over."""
        self._monitor = monitor
        self._address = address
        self._curve = curve
        self._since = 0.0
        self._looked = False

    def check(self) -> None:
        """Read the monitor's events; raises SetupError if no connection is possible."""
        while self._monitor.poll(0):
            self._hear(dict(recv_monitor_message(self._monitor)))
        if self.hint is None or self._looked or time.monotonic() - self._since <= _SETTLED_SECONDS:
            return
        self._looked = True
        # The side that disconnects first decides what libzmq reports: a server without keys that
        # was quicker looks like one with other keys, one with keys like none. A tunnel's address
        # does not have its own host and port.
        direct = self._address.startswith("tcp://")
        greeted = greeted_mechanism(self._address, _GREETING_SECONDS) if direct else None
        if self._curve is not None:
            raise _without_encryption(self._address) if greeted == "NULL" else self.hint
        # Otherwise plain connections keep trying: nothing says that it is the wrong server.
        if greeted == "CURVE":
            raise _without_keys(self._address, _VARIABLE)

    def _hear(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == zmq.EVENT_DISCONNECTED:
            # It follows every failed handshake. Alone it is a server that has just ended, or, with
            # keys, a peer that does not speak ZeroMQ: libzmq reports no more, and gives up.
            if self.hint is None:
                self._since = time.monotonic()
                self.hint = _dropped(self._address)
            return
        failure = handshake_failure(event, self._address, self._curve)
        if failure is None:
            return
        if kind != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            raise failure
        if self.hint is None:
            self._since = time.monotonic()
        self.hint = failure
