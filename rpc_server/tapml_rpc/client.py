"""The host's end: a session with a device, near or far.

::

    with connect("tcp://127.0.0.1:9000") as session:
        buffer = session.allocate(16)
        session.write(buffer, bytes(range(16)))
        print(bytes(session.read(buffer, 16)))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tapml_rpc.diagnose import told
from tapml_rpc.host_names import look_up
from tapml_rpc.link import Held
from tapml_rpc.remote import RemoteBuffer, RemoteLibrary, RemoteTensor
from tapml_rpc.security.bind import split_address
from tapml_rpc.security.credentials import Credentials
from tapml_rpc.session import Batch, Session
from tapml_rpc.transport import CallResult, PendingCall, PendingRead, Transport
from tapml_rpc.tunnel import leads_to_websocket, websocket_through
from tapml_targets.errors import InputError, SetupError
from tapml_targets.installed import package_hint

__all__ = [
    "Batch",
    "CallResult",
    "PendingCall",
    "PendingRead",
    "RemoteBuffer",
    "RemoteLibrary",
    "RemoteTensor",
    "Session",
    "connect",
]

DEFAULT_TIMEOUT_SECONDS: Final = 10.0


def connect(
    address: str,
    *,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
    kernel_deadline: float | None = None,
    credentials: Credentials | None = None,
    lease: Held | str = "",
    on_close: Callable[[], None] | None = None,
) -> Session:
    """Open a session with a running server.

    Parameters
    ----------
    address
        As the server prints it: ``tcp://host:port``, ``ws://host:port``, ``wss://host:port``.
    timeout
        Seconds to wait for its welcome.
    kernel_deadline
        Seconds one command may take; at most, and by default, what the server allows.
    credentials
        Keys or a token, if the server asks for them; those of the environment (``TAPML_RPC_KEY``
        and others) if None.
    lease
        A tracker's lease on the device, if any, or only its token: then an error of the session
        cannot say why the lease ended.
    on_close
        Called when the session is closed.

    Raises
    ------
    SetupError
        If no server answers, it refuses this client, or it takes no more sessions.
    ProtocolError
        If it speaks another version.
    InputError
        If the address is malformed.
    """
    credentials = credentials or Credentials.from_environment()
    transport = _transport(address, timeout, kernel_deadline, credentials, lease)
    return Session(transport, on_close=on_close)


def _transport(
    address: str,
    timeout: float,
    kernel_deadline: float | None,
    credentials: Credentials | None,
    lease: Held | str,
) -> Transport:
    token = None if credentials is None else credentials.token
    if leads_to_websocket(address):
        address, token = websocket_through(address)
    if address.startswith(("ws://", "wss://")):
        from tapml_rpc.websocket.opening import open_websocket

        encrypted = address.startswith("wss://") and credentials is not None
        return open_websocket(
            address,
            timeout=timeout,
            kernel_deadline=kernel_deadline,
            token=token,
            ssl_context=credentials.ssl_context() if encrypted and credentials else None,
            lease=lease,
        )
    _check_place(address, timeout)
    try:
        # Boards without ZeroMQ use the other binding.
        from tapml_rpc.zeromq.opening import open_zeromq
    except ModuleNotFoundError as error:
        if error.name != "zmq":
            raise
        raise SetupError(
            f"{address} takes pyzmq, which is not installed here: give the device's ws:// or "
            "wss:// address, which it has with `tapml rpc serve --websocket`, or install it: "
            f"{package_hint('pyzmq')}"
        ) from None

    try:
        return open_zeromq(
            address,
            timeout=timeout,
            kernel_deadline=kernel_deadline,
            curve=None if credentials is None else credentials.curve(),
            lease=lease,
        )
    except SetupError as error:
        # libzmq keeps trying and does not say why.
        raise type(error)(f"{error}{told(address)}") from None


def _check_place(address: str, timeout: float) -> None:
    """Check host and port: libzmq takes any text, and connects to nothing until the timeout."""
    there = split_address(address, ("tcp",))
    if address.startswith("tcp://") and (there is None or not there[2]):
        _, colon, port = address.removeprefix("tcp://").rpartition(":")
        good = port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536
        why = ": there is no port; `tapml rpc serve` prints its own"
        if colon:
            why = f": {port!r} is not a port from 1 to 65535"
        raise InputError(
            "expected tcp://HOST:PORT, an address such as tcp://127.0.0.1:9190, got "
            f"{address!r}{'' if good else why}"
        )
    # libzmq also takes where it connects from: tcp://SOURCE;HOST:PORT.
    if there is not None and ";" not in there[1]:
        look_up(there[1], timeout)
