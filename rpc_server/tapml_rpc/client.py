"""The host's end: a session with a device, near or far.

::

    with connect("tcp://127.0.0.1:9000") as session:
        buffer = session.allocate(16)
        session.write(buffer, bytes(range(16)))
        print(bytes(session.read(buffer, 16)))
"""

from __future__ import annotations

from typing import Final

from tapml_rpc.batch import Batch
from tapml_rpc.pending import CallResult, PendingCall, PendingRead
from tapml_rpc.remote import RemoteBuffer, RemoteLibrary, RemoteTensor
from tapml_rpc.session import Session

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
) -> Session:
    """Open a session with a running server.

    Parameters
    ----------
    address
        As the server prints it, ``tcp://host:port``.
    timeout
        Seconds to wait for its welcome.
    kernel_deadline
        Seconds one command may take; at most, and by default, what the server allows.

    Raises
    ------
    SetupError
        If no server answers or it takes no more sessions.
    ProtocolError
        If it speaks another version.
    """
    # Boards without ZeroMQ use the other binding.
    from tapml_rpc.link import Link

    return Session(Link(address, timeout=timeout, kernel_deadline=kernel_deadline))
