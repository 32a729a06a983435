"""Byte tunnels through a tracker: an HTTP upgrade, then every byte of one side is the other's.

A client asks for ``/control`` or ``/data`` with the :func:`ticket` of its lease, the device for
``/leg`` with the secret of a stream. The session's own connection goes through, encrypted end to
end if the device has keys: the tracker cannot read it.

A lease on a device that only connects out has an address for that: ``relay://HOST:PORT/TOKEN``.
:func:`connect_socket` takes a ZeroMQ socket there, :func:`open_stream` a plain one. ``relay+ws://``
and ``relay+wss://`` lead through a tracker's WebSocket door instead: a server's address like any
other, whose token is the lease's.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tapml_rpc.flow import Flow, Forwarder
from tapml_rpc.security.bind import bracketed
from tapml_rpc.security.private_files import new_folder
from tapml_targets.errors import InputError, SetupError

if TYPE_CHECKING:
    import zmq

PROTOCOL: Final = "tapml-bytes"
"""What an upgrade to a tunnel is called."""
_MOST_HEAD_BYTES: Final = 4096
_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def ticket(token: str) -> str:
    """What a lease's holder shows where others may read it; the token does not follow from it."""
    return hashlib.sha256(b"tapml relay " + token.encode()).hexdigest()[:32]


def open_tunnel(relay: tuple[str, int], path: str, secret: str, timeout: float) -> socket.socket:
    """A socket to the other side, which blocks; raises SetupError: no relay, or it refuses."""
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


_SCHEME: Final = "relay"
_THROUGH: Final = "relay+"
_DIAL_SECONDS: Final = 8.0


@dataclass(frozen=True)
class RelayAddress:
    """The parts of an address that leads through a relay."""

    host: str
    port: int
    token: str = field(repr=False)
    role: str

    def __str__(self) -> str:
        role = "" if self.role == "control" else f"/{self.role}"
        return f"{_SCHEME}://{bracketed(self.host)}:{self.port}/{self.token}{role}"


def without_secret(address: str) -> str:
    """An address as people may see it: in place of a lease's token its ticket, shortened."""
    if leads_to_websocket(address):
        return websocket_through(address)[0]
    if not is_relayed(address):
        return address
    there = parse(address)
    return str(RelayAddress(there.host, there.port, ticket(there.token)[:8], "control"))


def is_relayed(address: str) -> bool:
    """Whether an address leads through a relay."""
    return address.startswith(f"{_SCHEME}://")


def parse(address: str) -> RelayAddress:
    """Parse a relay's address; raises InputError if it is malformed."""
    try:
        parts = urlsplit(address)
        token, _, role = parts.path.removeprefix("/").partition("/")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, token, role = None, None, "", ""
    if not is_relayed(address) or not host or not port or not token.isalnum():
        raise InputError(f"expected {_SCHEME}://HOST:PORT/TOKEN as a lease gives it")
    return RelayAddress(host, port, token, role or "control")


def websocket_through(address: str) -> tuple[str, str]:
    """The address and token in ``relay+ws://HOST:PORT/TOKEN``; raises InputError."""
    url, _, token = address.removeprefix(_THROUGH).rpartition("/")
    if not leads_to_websocket(address) or not token.isalnum() or urlsplit(url).hostname is None:
        raise InputError(f"expected {_THROUGH}ws://HOST:PORT/TOKEN as a lease gives it")
    return url, token


def leads_to_websocket(address: str) -> bool:
    """Whether an address leads through a tracker's WebSocket door."""
    return address.startswith((f"{_THROUGH}ws://", f"{_THROUGH}wss://"))


def data_address_beside(control: str) -> str:
    """The address of the data connection beside a relayed control connection."""
    there = parse(control)
    return str(RelayAddress(there.host, there.port, there.token, "data"))


def connect_socket(connecting: zmq.Socket[bytes], address: str) -> None:
    """Connect a ZeroMQ socket, through the relay if `address` leads through one, or SetupError."""
    if is_relayed(address):
        address = bridged(open_stream(address, _DIAL_SECONDS))
    connecting.connect(address)


def open_stream(address: str, timeout: float) -> socket.socket:
    """A connected socket to the device at the other end of a relay; raises SetupError."""
    there = parse(address)
    relay, path = (there.host, there.port), f"/{there.role}"
    return open_tunnel(relay, path, ticket(there.token), timeout)


_ACCEPT_SECONDS: Final = 10.0
_lock = threading.Lock()
_running: dict[int, Forwarder] = {}


def bridged(dialled: socket.socket) -> str:
    """An ``ipc://`` address for one connection, which is joined with `dialled`.

    libzmq opens its connections itself, and knows nothing of tunnels. Only this user can enter its
    folder, which is removed at the connection's first byte; a second connection is refused.
    """
    folder: Path | None = None
    try:
        folder = new_folder("tapml-")
        path = folder / "relay"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen(1)
        listener.settimeout(_ACCEPT_SECONDS)
    except BaseException:
        dialled.close()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    threading.Thread(
        target=_accept, args=(folder, listener, dialled), name="tapml-bridge", daemon=True
    ).start()
    return f"ipc://{path}"


def _accept(folder: Path, listener: socket.socket, dialled: socket.socket) -> None:
    try:
        inside, _ = listener.accept()
    except OSError:
        dialled.close()
        return
    finally:
        listener.close()
        shutil.rmtree(folder, ignore_errors=True)
    for endpoint in (inside, dialled):
        endpoint.setblocking(False)
    forwarder = _forwarder()
    forwarder.post(partial(forwarder.add, Flow(inside, dialled)))


def _forwarder() -> Forwarder:
    """The forwarder of this process; a forked child makes its own."""
    with _lock:
        forwarder = _running.get(os.getpid())
        if forwarder is None:
            forwarder = _running[os.getpid()] = Forwarder()
            run = partial(forwarder.run, lambda: False, 60.0)
            threading.Thread(target=run, name="tapml-bridge", daemon=True).start()
        return forwarder
