"""The client's way to a session over WebSocket: control connection, hello, data connection."""

from __future__ import annotations

import select
import ssl
import time
from functools import partial
from typing import Final

from tapml_rpc import wire
from tapml_rpc.link import Held, Link, held, token_of
from tapml_rpc.transport import EndedError, Unanswered
from tapml_rpc.watch import POLL_MILLISECONDS, SILENCE_SECONDS, Describe, Watch
from tapml_rpc.websocket import frames
from tapml_rpc.websocket.handshake import check_address, data_address, open_socket
from tapml_rpc.websocket.stream import Stream
from tapml_rpc.welcome import Welcome, hello
from tapml_targets.errors import SetupError, TapmlError


class WebSocketWatch(Watch):
    """The :class:`tapml_rpc.watch.Watch` over a WebSocket connection, which it owns."""

    def __init__(self, control: Stream, token: bytes, describe: Describe) -> None:
        super().__init__(token, describe)
        self._control = control
        self._poller = select.poll()
        self._poller.register(control.fileno(), select.POLLIN)
        self._poller.register(self._waker.fileno(), select.POLLIN)
        self.begin()

    def _run(self) -> None:
        super()._run()
        self._control.close()

    def _look(self) -> bool:
        # First what TLS may hold already, which no poll shows.
        heard = self._hear_all()
        self._poller.poll(POLL_MILLISECONDS)
        self._waker.drain()
        return heard

    def _send(self, header: wire.Header) -> None:
        deadline = time.monotonic() + SILENCE_SECONDS

        def check() -> None:
            if self._stop.is_set() or time.monotonic() > deadline:
                raise EndedError("it takes no messages any more")

        packed = wire.pack({**header, "session": self._token})
        self._control.send(packed, check=check)

    def _hear_all(self) -> bool:
        heard = False
        while (message := self._control.receive(0)) is not None:
            heard = True
            self._hear(message[0])
        return heard


_POLL_MILLISECONDS: Final = 50


def open_websocket(
    address: str,
    *,
    timeout: float,
    kernel_deadline: float | None = None,
    token: str | None = None,
    ssl_context: ssl.SSLContext | None = None,
    lease: Held | str = "",
) -> Link:
    """Open a session with a server's WebSocket binding; see :func:`tapml_rpc.client.connect`.

    `ssl_context` says whom to trust for ``wss``; None for the system's authorities. Raises
    SetupError if nothing answers, or the server refuses the token or takes no more sessions;
    ProtocolError if it is not a tapml server, or speaks another version; InputError if the address
    is malformed.
    """
    address = check_address(address)
    deadline = time.monotonic() + timeout

    def connect(url: str) -> Stream:
        return Stream(open_socket(url, deadline=deadline, token=token, ssl_context=ssl_context))

    control = connect(address + frames.CONTROL_PATH)
    try:
        greeting = wire.pack(hello(kernel_deadline, token_of(lease)))
        welcome = _greet(control, address, timeout, deadline, greeting)
        data = connect(data_address(welcome.data_address, address))
        try:
            return Link(
                address,
                welcome,
                data,
                Unanswered(),
                partial(WebSocketWatch, control, welcome.token),
                lease=held(lease),
            )
        except BaseException:
            data.abort()
            raise
    except BaseException:
        control.abort()
        raise


def _greet(
    control: Stream, address: str, timeout: float, deadline: float, greeting: bytes
) -> Welcome:
    def check() -> None:
        if time.monotonic() > deadline:
            raise SetupError(
                f"the tapml server at {address} has sent no welcome within {timeout:g} s"
            )

    try:
        control.send(greeting, check=check)
        while (message := control.receive(_POLL_MILLISECONDS)) is None:
            check()
    except EndedError as error:
        raise SetupError(f"{address} ended the connection before its welcome: {error}") from None
    try:
        return Welcome.from_wire(message[0], address)
    except TapmlError:
        control.close()
        raise
