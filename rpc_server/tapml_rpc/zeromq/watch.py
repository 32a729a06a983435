"""Watches a server over libzmq's sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from tapml_rpc import wire
from tapml_rpc.watch import POLL_MILLISECONDS, Describe, Watch
from tapml_rpc.zeromq.dealer import Socket

# A server checks ten times a second which data connections have gone, and reports that on control.
_WHY_SECONDS: Final = 2.0
# Servers whose libzmq looks for vanished hosts wait for 30 s.
BEAT_SECONDS: Final = 5.0


class ZeroMQWatch(Watch):
    """The :class:`tapml_rpc.watch.Watch` over a control socket of libzmq.

    This object owns `control`. `monitors` report a dropped connection: that of control first, and
    that of data if libzmq has it. `beat` sends the server's data socket a sign of life.
    """

    failures = (*Watch.failures, zmq.ZMQError)

    def __init__(
        self,
        control: Socket,
        monitors: Sequence[Socket],
        token: bytes,
        describe: Describe,
        *,
        beat: Callable[[], None],
    ) -> None:
        super().__init__(token, describe)
        self._control = control
        self._monitors = monitors
        self._beat = beat
        self._next_beat = time.monotonic() + BEAT_SECONDS
        self._poller = zmq.Poller()
        for source in (control, *monitors, self._waker.fileno()):
            self._poller.register(source, zmq.POLLIN)
        self.begin()

    def _say_what_is_due(self, now: float) -> None:
        super()._say_what_is_due(now)
        if now >= self._next_beat:
            self._beat()
            self._next_beat = now + BEAT_SECONDS

    def _look(self) -> bool:
        ready = dict(self._poller.poll(POLL_MILLISECONDS))
        self._waker.drain()
        # The server's own reason comes before the report that it is gone.
        heard = self._control in ready
        if heard:
            self._hear_all()
        if self._dropped or any(monitor in ready for monitor in self._monitors):
            self._hear_why()
            self._lose("the connection to the server dropped")
        return heard

    def _send(self, header: wire.Header) -> None:
        self._control.send(wire.pack({**header, "session": self._token}), zmq.NOBLOCK)

    def _hear_all(self) -> None:
        with suppress(zmq.Again):
            while True:
                self._hear(self._control.recv(zmq.NOBLOCK))

    def _hear_why(self) -> None:
        """Find out why a connection dropped: control says it, unless it has dropped, too."""
        dropped = self._monitors[0]
        poller = zmq.Poller()
        poller.register(self._control, zmq.POLLIN)
        poller.register(dropped, zmq.POLLIN)
        deadline = time.monotonic() + _WHY_SECONDS
        while self.lost is None and (left := deadline - time.monotonic()) > 0:
            ready = dict(poller.poll(int(left * 1000) + 1))
            self._hear_all()
            if dropped in ready:
                recv_monitor_message(dropped)
                return
