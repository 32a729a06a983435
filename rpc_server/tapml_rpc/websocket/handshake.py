"""The client's handshake: a TCP connection, TLS if the address says wss, the upgrade.

The ``websockets`` package speaks the handshake, without doing I/O. What follows is ours
(:mod:`tapml_rpc.websocket.stream`): its synchronous client reads with a thread per connection and
copies every payload four times.
"""

from __future__ import annotations

import socket
import ssl
import time
from typing import Final
from urllib.parse import urlsplit

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI
from websockets.protocol import OPEN
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from tapml_rpc.diagnose import told
from tapml_rpc.host_names import look_up
from tapml_rpc.security.tls import tls_failure
from tapml_rpc.websocket.frames import LOGGER, SUBPROTOCOL
from tapml_targets.errors import InputError, ProtocolError, SetupError, TapmlError, UnreachableError

_RETRY_SECONDS: Final = 0.1
_SHOWN_BYTES: Final = 2000
_UNAUTHORIZED: Final = 401
_TOKEN_HINT: Final = "; `tapml offload` and others send what TAPML_RPC_TOKEN says"  # noqa: S105
_WRONG_ADDRESS: Final = "expected an address such as ws://127.0.0.1:9000, got {!r}{}"


def check_address(address: str) -> str:
    """The address without a closing slash; raises InputError unless it is ws(s)://host:port."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        raise InputError(_WRONG_ADDRESS.format(address, f": {error}")) from None
    if (
        parts.scheme not in ("ws", "wss")
        or not parts.hostname
        or port == 0
        or parts.path not in ("", "/")
        or parts.query
        or parts.fragment
        or "@" in parts.netloc
    ):
        raise InputError(_WRONG_ADDRESS.format(address, ""))
    return f"{parts.scheme}://{parts.netloc}"


def data_address(told: str, address: str) -> str:
    """The data connection's URL for this side: the path of `told` (from the welcome) on our host.

    The server may be behind a tunnel or a proxy, so host, port and scheme are those of `address`,
    the control connection's.
    """
    return f"{address}{urlsplit(told).path or '/'}"


def open_socket(
    url: str, *, deadline: float, token: str | None, ssl_context: ssl.SSLContext | None
) -> socket.socket:
    """Connect and upgrade; the socket is at the first byte of the first frame.

    Until `deadline`, on the monotonic clock, a server that does not listen yet is tried again.
    Without `ssl_context` ``wss`` trusts the system's authorities. Raises SetupError if nothing
    answers, or with the server's reason if it refuses the connection; ProtocolError if it is not a
    tapml server.
    """
    try:
        uri = parse_uri(url)
    except InvalidURI as error:
        raise InputError(_WRONG_ADDRESS.format(url, f": {error}")) from None
    connection = _connect((uri.host, uri.port), url, deadline)
    try:
        if uri.secure:
            context = ssl_context or ssl.create_default_context()
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            connection = context.wrap_socket(connection, server_hostname=uri.host)
        protocol = ClientProtocol(uri, subprotocols=[Subprotocol(SUBPROTOCOL)], logger=LOGGER)
        request = protocol.connect()
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        protocol.send_request(request)
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        for data in protocol.data_to_send():
            connection.sendall(data)
        _read_response(connection, protocol, url, deadline)
        connection.setblocking(False)
    except ssl.SSLError as error:
        connection.close()
        raise SetupError(f"{tls_failure(error, _origin(url))}{told(url)}") from None
    except OSError as error:
        connection.close()
        raise _silent(url, error) from None
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(place: tuple[str, int], url: str, deadline: float) -> socket.socket:
    look_up(place[0], max(0.01, deadline - time.monotonic()))
    while True:
        try:
            connection = socket.create_connection(
                place, timeout=max(0.01, deadline - time.monotonic())
            )
        except OSError as error:
            if time.monotonic() + _RETRY_SECONDS > deadline:
                raise _silent(url, error) from None
            time.sleep(_RETRY_SECONDS)
            continue
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _read_response(
    connection: socket.socket, protocol: ClientProtocol, url: str, deadline: float
) -> None:
    # Byte by byte, because what follows the response is no longer the handshake's.
    while protocol.state is not OPEN and protocol.handshake_exc is None:
        if time.monotonic() > deadline:
            raise TimeoutError("the handshake was not finished in time")
        data = connection.recv(1)
        if data:
            protocol.receive_data(data)
        else:
            protocol.receive_eof()
            break
    if protocol.state is OPEN and protocol.subprotocol == SUBPROTOCOL:
        return
    raise _refused(protocol.handshake_exc, url)


def _refused(error: Exception | None, url: str) -> TapmlError:
    if isinstance(error, InvalidStatus):
        status, body = error.response.status_code, error.response.body or b""
        said = bytes(body[:_SHOWN_BYTES]).decode("utf-8", "replace").strip()
        kind = SetupError if status in (401, 403, 429, 503) else ProtocolError
        said = f"{said or 'without a reason'}{_TOKEN_HINT if status == _UNAUTHORIZED else ''}"
        return kind(f"{_origin(url)} refused the connection (HTTP {status}): {said}")
    if isinstance(error, InvalidHandshake):
        return ProtocolError(f"{_origin(url)} is not a tapml server: {error}{told(url)}")
    return ProtocolError(f"{_origin(url)} is not a tapml server: it does not speak {SUBPROTOCOL}")


def _silent(url: str, error: OSError) -> UnreachableError:
    parts = urlsplit(url)
    # The reason of a refused connection is complete.
    there = "" if isinstance(error, ConnectionRefusedError) else told(url)
    usual = 443 if parts.scheme == "wss" else 80
    listen = "wss://0.0.0.0" if parts.scheme == "wss" else "ws://127.0.0.1"
    return UnreachableError(
        f"no tapml server answers at {_origin(url)}: {error.strerror or error}{there}; start "
        f"one there with `tapml rpc serve`, with --websocket {listen}:{parts.port or usual}"
    )


def _origin(url: str) -> str:
    """The address as the user gave it: which of its connections failed does not matter."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
