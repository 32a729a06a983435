"""The few bytes of SOCKS 5 (RFC 1928) that name the stream of a connection to the relay.

SOCKS because every language has it: a client goes through the relay as through any proxy, and the
name it asks for is the lease's secret. Only CONNECT to a name, without SOCKS's own log-in: a client
without the secret asks for a name that does not exist.
"""

from __future__ import annotations

import socket
import time
from typing import Final

from tapml_targets.errors import ProtocolError, SetupError

GRANTED: Final = 0
FAILED: Final = 1
NOT_ALLOWED: Final = 2
UNREACHABLE: Final = 4
PORT: Final = 1
"""The port asked for; the name is sufficient."""
_VERSION: Final = 5
_CONNECT: Final = 1
_BY_NAME: Final = 3
_CHOICE: Final = bytes([_VERSION, 0])
_MEANING: Final = {
    FAILED: "the relay has no room",
    NOT_ALLOWED: "the lease has ended, or never was",
    UNREACHABLE: "the device did not come to the relay",
}


def reply(code: int) -> bytes:
    """The relay's answer to a request."""
    return bytes([_VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0])


class Negotiation:
    """The relay's side of a new connection, fed as its bytes arrive."""

    def __init__(self) -> None:
        self._data = b""
        self._greeted = False

    def feed(self, data: bytes) -> tuple[bytes, str | None]:
        """Take bytes; the answer to send now, and the requested name once it is known.

        Raises ProtocolError for anything but this subset of SOCKS 5.
        """
        self._data += data
        answer = b""
        if not self._greeted:
            if len(self._data) < 2 or len(self._data) < 2 + self._data[1]:
                self._check_version()
                return b"", None
            self._check_version()
            methods = self._data[2 : 2 + self._data[1]]
            if 0 not in methods:
                raise ProtocolError("the relay supports no SOCKS log-in")
            self._data = self._data[2 + len(methods) :]
            self._greeted = True
            answer = _CHOICE
        if len(self._data) < 5:
            return answer, None
        self._check_version()
        if self._data[1] != _CONNECT or self._data[3] != _BY_NAME:
            raise ProtocolError("the relay connects to names only")
        end = 5 + self._data[4] + 2
        if len(self._data) < end:
            return answer, None
        if len(self._data) > end:
            raise ProtocolError("bytes before the relay's answer")
        return answer, self._data[5 : end - 2].decode("ascii", "replace")

    def _check_version(self) -> None:
        if self._data and self._data[0] != _VERSION:
            raise ProtocolError("not SOCKS 5")


def dial(relay: tuple[str, int], name: str, timeout: float) -> socket.socket:
    """Connect to a name through the relay: the other side is at the end of the socket.

    Raises SetupError if the relay cannot be reached or refuses; the message says which.
    """
    deadline = time.monotonic() + timeout
    where = f"{relay[0]}:{relay[1]}"
    connection = None
    try:
        connection = socket.create_connection(relay, timeout=timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(bytes([_VERSION, 1, 0]))
        _receive(connection, 2, deadline)
        asked = name.encode("ascii")
        head = bytes([_VERSION, _CONNECT, 0, _BY_NAME, len(asked)])
        connection.sendall(head + asked + PORT.to_bytes(2, "big"))
        code = _receive(connection, len(reply(GRANTED)), deadline)[1]
    except (OSError, EOFError) as error:
        if connection is not None:
            connection.close()
        raise SetupError(f"the relay at {where} cannot be used: {error}") from None
    if code != GRANTED:
        connection.close()
        raise SetupError(f"the relay at {where} refused: {_MEANING.get(code, f'code {code}')}")
    connection.settimeout(None)
    return connection


def _receive(connection: socket.socket, nbytes: int, deadline: float) -> bytes:
    data = b""
    while len(data) < nbytes:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        piece = connection.recv(nbytes - len(data))
        if not piece:
            raise EOFError("it closed the connection")
        data += piece
    return data
