"""Byte tunnels through a tracker: an HTTP upgrade, then every byte of one side is the other's.

A client asks for ``/control`` or ``/data`` with the :func:`ticket` of its lease, the device for
``/leg`` with the secret of a stream. The session's own connection goes through, encrypted end to
end if the device has keys: the tracker cannot read it.
"""

from __future__ import annotations

import hashlib
import re
import socket
import time
from typing import Final

from tapml_rpc.security.bind import bracketed
from tapml_targets.errors import SetupError

PROTOCOL: Final = "tapml-bytes"
"""What an upgrade to a tunnel is called."""
_MOST_HEAD_BYTES: Final = 4096
_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def ticket(token: str) -> str:
    """What a lease's holder shows at the relay, where others may read it.

    The token itself, which the device asks for, cannot be computed from it.
    """
    return hashlib.sha256(b"tapml relay " + token.encode()).hexdigest()[:32]


def open_tunnel(relay: tuple[str, int], path: str, secret: str, timeout: float) -> socket.socket:
    """Connect through the relay: the other side is at the end of the socket, which blocks.

    Raises SetupError if the relay cannot be reached or refuses; the message says which.
    """
    deadline = time.monotonic() + timeout
    where = f"{bracketed(relay[0])}:{relay[1]}"
    request = (
        f"GET {path} HTTP/1.1\r\nHost: {where}\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n"
        f"Authorization: Bearer {secret}\r\n\r\n"
    )
    connection = None
    try:
        connection = socket.create_connection(relay, timeout=timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(request.encode("ascii"))
        head = _receive_head(connection, deadline)
        status = _STATUS.match(head)
        if status is not None and status[1] == b"101":
            connection.settimeout(None)
            return connection
        why = connection.recv(_MOST_HEAD_BYTES).decode("ascii", "replace").strip()
    except (OSError, EOFError, UnicodeError) as error:
        if connection is not None:
            connection.close()
        raise SetupError(f"the relay at {where} cannot be used: {error}") from None
    connection.close()
    raise SetupError(f"the relay at {where} refused: {why or 'what answers there is no tracker'}")


def _receive_head(connection: socket.socket, deadline: float) -> bytes:
    """An HTTP response without its body, byte by byte: what follows is the other side's."""
    head = b""
    while not head.endswith(b"\r\n\r\n") and len(head) < _MOST_HEAD_BYTES:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        byte = connection.recv(1)
        if not byte:
            raise EOFError("it closed the connection")
        head += byte
    return head
