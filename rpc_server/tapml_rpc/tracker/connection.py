"""A connection to a tracker, over either binding; a new one is made where it ends."""

from __future__ import annotations

import os
import socket
import time
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Final

from tapml_rpc import wire
from tapml_rpc.diagnose import told
from tapml_rpc.failures import failure_from_wire
from tapml_rpc.tracker.records import WEBSOCKET, ZMQ, printable
from tapml_targets.errors import SetupError, UnreachableError

if TYPE_CHECKING:
    from tapml_rpc.security.credentials import Credentials

ANSWER_SECONDS: Final = 10.0
"""A tracker that is silent for so many seconds counts as gone."""
_POLL_SECONDS: Final = 0.1
_WEBSOCKET: Final = ("ws://", "wss://")


class Connection:
    """A connection; its messages are headers, and each binding has its own.

    `address` is the tracker's as it was given, `host` the tracker's host as this side reaches it
    (the relay's, too), `credentials` what the connection was opened with.
    """

    def __init__(self, address: str, host: str, credentials: Credentials | None) -> None:
        self.address = address
        self.host = host
        self.credentials = credentials
        self._owner = os.getpid()
        self._heard = self._looked = time.monotonic()

    def watch(self, descriptor: int) -> None:
        """Let :meth:`receive` return when a descriptor is readable."""
        raise NotImplementedError

    def send(self, header: wire.Header) -> None:
        """Send a message; it may be dropped if the tracker does not read."""
        raise NotImplementedError

    def close(self, *last: wire.Header) -> None:
        """Send waiting messages and end the connection; never raises, never waits long."""
        raise NotImplementedError

    def receive(self, seconds: float) -> wire.Header | None:
        """The next message; None if none came within `seconds`, or sooner.

        Raises SetupError if the tracker is gone, or silent for :data:`ANSWER_SECONDS`, and
        ProtocolError if it sent a malformed header.
        """
        now = time.monotonic()
        if now - self._looked > 1.0:
            # This process was stopped, or busy elsewhere: that says nothing about the tracker.
            self._heard = now
        header = self._next(int(max(0, min(seconds, ANSWER_SECONDS)) * 1000))
        self._looked = time.monotonic()
        if header is not None:
            self._heard = self._looked
        elif self._looked - self._heard > ANSWER_SECONDS:
            raise SetupError(
                f"the tracker at {self.address} has not answered for {ANSWER_SECONDS:g} s"
                f"{told(self.address)}"
            )
        return header

    def _next(self, wait_milliseconds: int) -> wire.Header | None:
        """The next message; raises SetupError if the tracker is gone."""
        raise NotImplementedError


def is_websocket(address: str) -> bool:
    """Whether a tracker's address is that of its WebSocket door."""
    return address.startswith(_WEBSOCKET)


def check_tracker_address(address: str) -> None:
    """Raise InputError for a malformed tracker address, SetupError if its binding is missing."""
    if is_websocket(address):
        from tapml_rpc.websocket.handshake import check_address

        check_address(address)
    else:
        _zmq_connection().host_of(address)


def open_connection(
    address: str, credentials: Credentials | None = None, *, timeout: float = ANSWER_SECONDS
) -> Connection:
    """Connect to a tracker: ``tcp://host:port``, or ``ws://`` or ``wss://`` of its WebSocket door.

    `credentials` are keys for ``tcp``, a token and whom to trust for ``wss``. A WebSocket must be
    open within `timeout` seconds; ZeroMQ connects while one waits for an answer. Raises InputError
    if the address is malformed; SetupError if nothing answers, or the tracker refuses.
    """
    if is_websocket(address):
        from tapml_rpc.tracker.websocket_connection import WebSocketConnection

        return WebSocketConnection(address, credentials, timeout)
    opened: Connection = _zmq_connection().ZmqConnection(address, credentials)
    return opened


def ask(connection: Connection, header: wire.Header, timeout: float) -> wire.Header:
    """Send a message and return its answer; raises SetupError if none comes within `timeout`."""
    connection.send(header)
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise no_answer(connection.address, timeout)
        answer = connection.receive(min(left, _POLL_SECONDS))
        if answer is not None and answer.get("type") == "refused":
            raise failure_from_wire(answer.get("error"))
        if answer is not None and answer.get("type") != "probe":
            return answer


def no_answer(address: str, seconds: float) -> UnreachableError:
    """The error for a tracker that does not answer."""
    start = (
        "`tapml rpc tracker --websocket`"
        if is_websocket(address)
        else "`tapml rpc tracker`, or check that both ends have each other's keys"
    )
    return UnreachableError(
        f"no tracker answers at {address} within {seconds:g} s{told(address)}; start one there "
        f"with {start}"
    )


def own_label() -> str:
    """Names this process for the people who wait for what it holds."""
    try:
        # No getlogin: it needs a terminal.
        import pwd

        user = pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        user = os.environ.get("USER", "someone")
    return printable(f"{user}@{socket.gethostname()} pid {os.getpid()}")[:128]


def own_bindings() -> list[str]:
    """The bindings that this process can speak with a device."""
    found = {ZMQ: "zmq", WEBSOCKET: "websockets"}
    return [binding for binding, package in found.items() if find_spec(package) is not None]


def _zmq_connection() -> ModuleType:
    try:
        from tapml_rpc.tracker import zmq_connection
    except ImportError as error:
        raise SetupError(
            f"pyzmq is not installed here ({error}); give the tracker's ws:// or wss:// address, "
            "which it has with `tapml rpc tracker --websocket`"
        ) from None
    return zmq_connection
