"""A connection to a tracker over WebSocket: for devices and clients without ZeroMQ.

It has no thread and no timer: a stopped peer is noticed by the pong that its WebSocket owes, a
tracker that has gone by its connection, one that is stopped by its silence.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tapml_rpc import wire
from tapml_rpc.tracker.connection import ANSWER_SECONDS, Connection, no_answer
from tapml_rpc.tracker.records import TRACKER_PATH
from tapml_rpc.transport import EndedError
from tapml_rpc.websocket.handshake import check_address, open_socket
from tapml_rpc.websocket.stream import Stream
from tapml_targets.errors import ProtocolError, SetupError, UnreachableError

if TYPE_CHECKING:
    from tapml_rpc.security.credentials import Credentials


class WebSocketConnection(Connection):
    """The :class:`tapml_rpc.tracker.connection.Connection` to ``ws://`` or ``wss://host:port``.

    `credentials` are the tracker's token, if it asks for one, and whom to trust. The connection
    must open within `timeout` seconds. Raises InputError for a malformed address, SetupError if
    nothing answers, or the tracker refuses.
    """

    def __init__(self, address: str, credentials: Credentials | None, timeout: float) -> None:
        address = check_address(address)
        super().__init__(address, urlsplit(address).hostname or "", credentials)
        encrypted = credentials is not None and self.address.startswith("wss://")
        try:
            self._stream = Stream(
                open_socket(
                    self.address + TRACKER_PATH,
                    deadline=time.monotonic() + timeout,
                    token=None if credentials is None else credentials.token,
                    ssl_context=credentials.ssl_context() if encrypted and credentials else None,
                )
            )
        except UnreachableError:
            raise no_answer(self.address, timeout) from None
        self._poller = select.poll()
        self._poller.register(self._stream.fileno(), select.POLLIN)

    def watch(self, descriptor: int) -> None:
        """See :meth:`Connection.watch`."""
        self._poller.register(descriptor, select.POLLIN)

    def send(self, header: wire.Header) -> None:
        """Send a message."""
        deadline = time.monotonic() + ANSWER_SECONDS

        def check() -> None:
            if time.monotonic() > deadline:
                raise EndedError("it takes no messages")

        try:
            self._stream.send(wire.pack(header), check=check)
        except EndedError as error:
            raise self._gone(error) from None

    def _next(self, wait_milliseconds: int) -> wire.Header | None:
        try:
            # First what has come already, which no poll shows.
            message = self._stream.receive(0)
            if message is None:
                self._poller.poll(wait_milliseconds)
                message = self._stream.receive(0)
        except EndedError as error:
            raise self._gone(error) from None
        if message is None:
            return None
        packed, chunk = message
        if chunk:
            raise ProtocolError("the tracker sent a chunk; its messages are headers")
        return wire.unpack(packed)

    def close(self, *last: wire.Header) -> None:
        """Send waiting messages and end the connection."""
        if os.getpid() != self._owner:
            return
        if self._stream.torn:
            self._stream.abort()
            return
        with suppress(EndedError):
            for header in last:
                self._stream.send(wire.pack(header), check=_not_now)
        self._stream.close()

    def _gone(self, error: EndedError) -> SetupError:
        return SetupError(f"the tracker at {self.address} is gone: {error}")


def _not_now() -> None:
    raise EndedError("it takes no messages")
