"""A server of HTTP that knows where it listens, and which names it goes by."""

from __future__ import annotations

import ipaddress
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final
from urllib.parse import urlsplit

from tapml_targets.errors import InputError

LOOPBACK: Final = "127.0.0.1"
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class ListeningServer(ThreadingHTTPServer):
    """Listens; a context manager. A thread for each connection, which ends with the process.

    Raises
    ------
    InputError
        If it cannot listen there: the port is in use or reserved, the host is not one of this
        machine's.
    """

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler], host: str, port: int) -> None:
        self.host = host
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), handler)
        except (OSError, OverflowError) as error:
            raise InputError(
                f"cannot listen on {host}, port {port}: {getattr(error, 'strerror', None) or error}"
                "; name another port with --port (0 takes a free one), or an address of this "
                "machine with --host"
            ) from error

    def server_bind(self) -> None:
        """Bind without asking the network for this machine's full name, as the base class does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.host, int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that has gone."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Where a browser on this machine finds it."""
        name = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"http://{f'[{name}]' if ':' in name else name}:{self.server_port}/"

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        address = str(self.server_address[0])
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server and not what somebody else's DNS makes of it."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            port = urlsplit(f"//{host}").port or 80
        except ValueError:
            return False
        if port != self.server_port:
            return False
        if name in _LOOPBACK_NAMES or name == self.host.lower():
            return True
        if self.is_local:
            return False
        # Rebinding takes a name; an address is what it is.
        return _is_address(name) or name == socket.gethostname().lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
