"""A device or a client of the tracker at the other end of a WebSocket."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from websockets.frames import CloseCode, Frame, Opcode

from tapml_rpc.tracker.flow import Forwarder
from tapml_rpc.tracker.nonblocking import receive, send
from tapml_rpc.tracker.websocket_upgrade import PendingUpgrade

MOST_UNSENT_BYTES: Final = 4 << 20
"""What may wait for a peer that reads slowly: a few pages of a list of devices."""


class WebSocketPeer:
    """Messages to and from one peer, on the forwarder's thread.

    It owns the accepted `upgrade`. `identity` is a part of the hash of its token, or ``loopback``.
    `heard` takes each message; `ended` is called once, with the reason, when the connection is
    over. `last_heard` is on the monotonic clock. Raises OSError if it is gone already.
    """

    def __init__(
        self,
        upgrade: PendingUpgrade,
        forwarder: Forwarder,
        identity: str,
        heard: Callable[[bytes], None],
        ended: Callable[[str], None],
    ) -> None:
        self.identity = identity
        self.host = upgrade.host
        self.last_heard = time.monotonic()
        self._forwarder = forwarder
        self._protocol = upgrade.protocol
        self._socket = upgrade.socket
        self._heard = heard
        self._ended: Callable[[str], None] | None = ended
        self._message = bytearray()
        self._unsent = bytearray()
        self._last = False
        upgrade.come_in()
        self._watched = selectors.EVENT_READ
        forwarder.watch(self._socket, self._watched, self._ready)

    def send(self, message: bytes) -> None:
        """Send one message, or end the connection of a peer that reads none."""
        if self._ended is not None and not self._last:
            self._protocol.send_binary(message)
            self._flush()

    def ping(self) -> None:
        """Ask for a sign of life, which every WebSocket gives automatically."""
        if self._ended is not None and not self._last:
            self._protocol.send_ping(b"")
            self._flush()

    def close(self, code: int, why: str) -> None:
        """Send a goodbye, and end the connection whether it is taken or not."""
        if self._ended is None:
            return
        if not self._last:
            self._protocol.send_close(code, why[:100])
            self._flush()
        self._end(why)

    def _ready(self, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                self._read()
            if self._ended is not None and events & selectors.EVENT_WRITE:
                self._flush()
        except OSError as error:
            self._end(f"its connection dropped: {error}")

    def _read(self) -> None:
        data = receive(self._socket)
        if data is None:
            return
        if not data:
            self._end("its connection dropped")
            return
        self.last_heard = time.monotonic()
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take(event)
            if self._ended is None:
                # The receiver of that closed the connection: the rest is discarded.
                return
        self._flush()

    def _take(self, frame: Frame) -> None:
        if frame.opcode is Opcode.TEXT:
            self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "messages are binary")
        elif frame.opcode in (Opcode.BINARY, Opcode.CONT):
            self._message += frame.data
            if frame.fin:
                message = bytes(self._message)
                self._message.clear()
                self._heard(message)

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            # The package's way to say that nothing comes after.
            self._last = self._last or not data
            self._unsent += data
        try:
            while self._unsent and (taken := send(self._socket, self._unsent)):
                del self._unsent[:taken]
        except OSError as error:
            self._end(f"its connection dropped: {error}")
            return
        if len(self._unsent) > MOST_UNSENT_BYTES:
            self._end("it reads none of its messages")
        elif self._last and not self._unsent:
            self._end("it closed its connection")
        else:
            self._settle()

    def _settle(self) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        if events != self._watched:
            self._watched = events
            self._forwarder.forget(self._socket)
            self._forwarder.watch(self._socket, events, self._ready)

    def _end(self, why: str) -> None:
        if self._ended is None:
            return
        ended, self._ended = self._ended, None
        self._forwarder.forget(self._socket)
        with suppress(OSError):
            # The last message is read before the end of the connection.
            self._socket.shutdown(socket.SHUT_WR)
        self._socket.close()
        ended(why)
