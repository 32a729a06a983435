"""Watches a server over a WebSocket control connection."""

from __future__ import annotations

import select
import time

from tapml_rpc import wire
from tapml_rpc.connection import EndedError
from tapml_rpc.watch import POLL_MILLISECONDS, SILENCE_SECONDS, Describe, Watch
from tapml_rpc.websocket import frames
from tapml_rpc.websocket.stream import Stream


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
        self._control.send(frames.head(packed, 0), check=check)

    def _hear_all(self) -> bool:
        heard = False
        while (message := self._control.receive(0)) is not None:
            heard = True
            self._hear(frames.split(message)[0])
        return heard
