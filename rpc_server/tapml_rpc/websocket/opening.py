"""The client's way to a session: its control connection, the hello on it, its data connection.

What :mod:`tapml_rpc.welcome` is for ZeroMQ.
"""

from __future__ import annotations

import ssl
import time
from contextlib import suppress
from typing import Final

from tapml_rpc import wire
from tapml_rpc.failures import failure_from_wire
from tapml_rpc.loss import Held, held, token_of
from tapml_rpc.websocket import frames
from tapml_rpc.websocket.handshake import check_address, data_address, open_socket
from tapml_rpc.websocket.incoming import EndedError
from tapml_rpc.websocket.stream import Stream
from tapml_rpc.websocket.transport import WebSocketTransport
from tapml_targets.errors import ProtocolError, SetupError

DOWNLOAD_WINDOW: Final = 16 << 20
_POLL_MILLISECONDS: Final = 50


def open_websocket(
    address: str,
    *,
    timeout: float,
    kernel_deadline: float | None = None,
    token: str | None = None,
    ssl_context: ssl.SSLContext | None = None,
    lease: Held | str = "",
) -> WebSocketTransport:
    """Open a session with a server's WebSocket binding.

    Parameters
    ----------
    address
        ``ws://host:port``, or ``wss://host:port`` for TLS.
    timeout
        Seconds to wait for the server's welcome.
    kernel_deadline
        Longest time of one command in seconds; None leaves it to the server.
    token
        The server's secret, where it has one.
    ssl_context
        For wss: whom to trust; None for the system's authorities.
    lease
        A tracker's lease on the device, or its token.

    Raises
    ------
    SetupError
        If nothing answers, or the server refuses the token or takes no more sessions.
    ProtocolError
        If it is no tapml server, or speaks another version.
    InputError
        If the address is none.
    """
    address = check_address(address)
    deadline = time.monotonic() + timeout

    def connect(url: str) -> Stream:
        return Stream(open_socket(url, deadline=deadline, token=token, ssl_context=ssl_context))

    control = connect(address + frames.CONTROL_PATH)
    try:
        welcome = _greet(
            control, address, timeout, deadline, _hello(kernel_deadline, token_of(lease))
        )
        data = connect(
            data_address(wire.text(welcome.get("data_address"), "data address"), address)
        )
        try:
            return WebSocketTransport(address, welcome, control, data, held(lease))
        except BaseException:
            data.abort()
            raise
    except BaseException:
        control.abort()
        raise


def _hello(kernel_deadline: float | None, lease: str) -> wire.Header:
    hello: wire.Header = {
        "type": "hello",
        "versions": [wire.VERSION],
        "features": [],
        "download_window": DOWNLOAD_WINDOW,
    }
    if kernel_deadline is not None:
        hello["kernel_deadline"] = kernel_deadline
    if lease:
        hello["lease"] = lease
    return hello


def _greet(
    control: Stream, address: str, timeout: float, deadline: float, hello: wire.Header
) -> wire.Header:
    def check() -> None:
        if time.monotonic() > deadline:
            raise SetupError(
                f"the tapml server at {address} has sent no welcome within {timeout:g} s"
            )

    try:
        control.send(frames.head(wire.pack(hello), 0), check=check)
        while (message := control.receive(_POLL_MILLISECONDS)) is None:
            check()
    except EndedError as error:
        raise SetupError(f"{address} ended the connection before its welcome: {error}") from None
    reply = wire.unpack(frames.split(message)[0])
    if reply.get("type") == "refused":
        with suppress(EndedError):
            control.close()
        raise failure_from_wire(reply.get("error"))
    if reply.get("type") != "welcome":
        raise ProtocolError(f"{address} is no tapml server: it sent no welcome")
    return reply
