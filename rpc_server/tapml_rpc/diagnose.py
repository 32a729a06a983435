"""What listens at an address at which no device answered, in words for the caller.

It connects, and checks for a greeting (ZeroMQ), TLS, or an answer to an HTTP request. No secret is
sent.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import closing, suppress
from typing import Final
from urllib.parse import urlsplit

from tapml_rpc.host_names import of_failure

_SECONDS: Final = 1.0
_ZMTP: Final = 0xFF
_SAID: Final = {
    "tcp": "speaks ZeroMQ",
    "ws": "speaks HTTP, as a server does over WebSocket",
    "wss": "speaks TLS, as a server does over WebSocket",
}


def told(address: str) -> str:
    """A clause for the end of a message: what is wrong with an address, and what to do next.

    Such as ``" (there is no host 'bord')"``; empty if no fault shows from here.
    """
    try:
        parts = urlsplit(address)
        scheme, host, port = parts.scheme, parts.hostname or "", parts.port
    except ValueError:
        return ""
    if port is None or scheme not in _SAID:
        return ""
    try:
        found = _speaks(host, port)
    except (socket.gaierror, UnicodeError) as error:  # the latter: a label is empty or too long
        return f" ({of_failure(host, error)})"
    except ConnectionRefusedError:
        return " (nothing listens there)"
    except TimeoutError:
        return f" ({host} takes no connection: it is off, or a firewall is in between)"
    except OSError as error:
        return f" ({error.strerror or error})"
    if not found or found == scheme:
        return ""
    return f" (what listens there {_SAID[found]}: is it {found}://{parts.netloc}?)"


def _speaks(host: str, port: int) -> str:
    """The scheme of what listens there; empty if unknown."""
    with closing(_connect(host, port)) as peer, suppress(TimeoutError):
        heard = peer.recv(1)
        if heard and heard[0] == _ZMTP:
            return "tcp"
    # Whose certificate it is does not matter: nothing is sent to it.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with closing(_connect(host, port)) as peer, suppress(OSError):
        context.wrap_socket(peer, server_hostname=host).close()
        return "wss"
    with closing(_connect(host, port)) as peer, suppress(OSError):
        peer.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        if peer.recv(5).startswith(b"HTTP"):
            return "ws"
    return ""


def _connect(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), timeout=_SECONDS)
