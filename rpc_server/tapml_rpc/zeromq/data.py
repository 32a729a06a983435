"""The client's data connection: ZMTP on our own socket, or with CURVE a socket of libzmq."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Final

import zmq

from tapml_rpc.connection import Check
from tapml_rpc.security.curve import ClientCurve
from tapml_rpc.security.handshake import HandshakeWatch
from tapml_rpc.tracker.route import is_relayed, open_stream
from tapml_rpc.zeromq.dealer import Socket, connect_dealer
from tapml_rpc.zmtp.incoming import Place
from tapml_rpc.zmtp.stream import Stream
from tapml_targets.errors import InputError, SetupError

_ZERO_COPY_BYTES: Final = 64 << 10
_POLL_MILLISECONDS: Final = 50
_BOTH_OPEN: Final = "both its ports must be open to this client"


class DealerData:
    """A :class:`tapml_rpc.connection.DataConnection` on a DEALER, which its context closes."""

    memory_is_reused = False

    def __init__(self, dealer: Socket) -> None:
        self.torn = False
        self._socket = dealer

    def send(
        self, packed: bytes, chunk: bytes | memoryview = b"", check: Check | None = None
    ) -> None:
        """Send a message. A large chunk must not change until it is answered."""
        # A connection that libzmq has given up never takes anything again.
        while not self._socket.poll(_POLL_MILLISECONDS, zmq.POLLOUT):
            if check is not None:
                check()
        self.torn = True
        if chunk_bytes := len(chunk):
            self._socket.send(packed, zmq.SNDMORE)
            self._socket.send(chunk, 0, chunk_bytes < _ZERO_COPY_BYTES)
        else:
            self._socket.send(packed)
        self.torn = False

    def receive(self, wait_milliseconds: int) -> tuple[bytes, memoryview] | None:
        """The next message, if one comes in time. The socket's end is left to its monitor."""
        self._socket.rcvtimeo = wait_milliseconds
        try:
            packed = self._socket.recv()
        except zmq.Again:
            return None
        self.torn = True
        more = self._socket.getsockopt(zmq.RCVMORE)
        chunk = self._socket.recv(copy=False).buffer if more else memoryview(b"")
        self.torn = False
        return packed, chunk

    def beat(self) -> None:
        """Nothing: libzmq answers heartbeats."""

    def close(self, packed: bytes) -> None:
        """Send a last message if possible."""
        with suppress(zmq.ZMQError):
            self._socket.send(packed, zmq.NOBLOCK)

    def abort(self) -> None:
        """Close without waiting."""


def open_encrypted(
    context: zmq.Context[Socket], address: str, curve: ClientCurve, timeout: float
) -> tuple[DealerData, Socket, Socket]:
    """Connect to a data address with keys, within `timeout` seconds: connection, socket, monitor.

    Raises SetupError if nothing answers there, or the keys do not match.
    """
    dealer, monitor = connect_dealer(context, address, curve, once=True)
    handshakes = HandshakeWatch(monitor, address, curve)
    deadline = time.monotonic() + timeout
    # It takes messages once its handshake has finished.
    while not dealer.poll(_POLL_MILLISECONDS, zmq.POLLOUT):
        handshakes.check()
        if time.monotonic() > deadline:
            raise handshakes.hint or SetupError(
                f"the server's data address {address} cannot be reached within {timeout:g} s; "
                f"{_BOTH_OPEN}"
            )
    return DealerData(dealer), dealer, monitor


def open_plain(address: str, timeout: float, place: Place) -> Stream:
    """Connect to a plain data address within `timeout` seconds, through a relay if it names one.

    Chunks go to the memory of `place`. Raises SetupError if nothing there speaks ZMTP.
    """
    deadline = time.monotonic() + timeout
    return Stream(_connected(address, timeout), deadline, place)


def _connected(address: str, timeout: float) -> socket.socket:
    if is_relayed(address):
        return open_stream(address, timeout)
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        number = int(port)
    except ValueError:
        raise InputError(f"expected an address as tcp://127.0.0.1:9000, got {address!r}") from None
    try:
        return socket.create_connection((host.strip("[]"), number), timeout)
    except OSError as error:
        raise SetupError(
            f"the server's data address {address} cannot be reached: {error}; {_BOTH_OPEN}"
        ) from None
