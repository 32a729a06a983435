"""Watches a server over libzmq's sockets, and a server of this machine by its process too."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

import zmq
from zmq.utils.monitor import recv_monitor_message

from tapml_rpc import wire
from tapml_rpc.watch import POLL_MILLISECONDS, Describe, Watch
from tapml_rpc.zeromq.dealer import Socket

# A server of this machine that runs or waits for a processor is slow, not gone: a driver may
# compile for long on a busy machine and leave no time for the thread that answers.
BUSY_SILENCE_SECONDS: Final = 60.0
_LAST_WORDS_SECONDS: Final = 1.0
# A server checks ten times a second which data connections have gone, and reports that on control.
_WHY_SECONDS: Final = 2.0
# Servers whose libzmq looks for vanished hosts wait for 30 s.
BEAT_SECONDS: Final = 5.0

ExitReport: TypeAlias = Callable[[float], "str | None"]
Busy: TypeAlias = Callable[[], bool]


class ZeroMQWatch(Watch):
    """The :class:`tapml_rpc.watch.Watch` over a control socket of libzmq.

    This object owns `control`. `monitors` report a dropped connection: that of control first, and
    that of data if libzmq has it. `exit_report` and `busy` are for a local server: how its process
    ended, None while it runs (it waits for seconds), and whether it runs or waits for a processor
    or a disk. `beat` sends the server's data socket a sign of life.
    """

    failures = (*Watch.failures, zmq.ZMQError)

    def __init__(
        self,
        control: Socket,
        monitors: Sequence[Socket],
        token: bytes,
        describe: Describe,
        *,
        exit_report: ExitReport | None,
        busy: Busy | None,
        beat: Callable[[], None],
    ) -> None:
        super().__init__(token, describe)
        self._control = control
        self._monitors = monitors
        self._exit_report = exit_report
        self._busy = busy
        self._beat = beat
        self._next_beat = time.monotonic() + BEAT_SECONDS
        self._poller = zmq.Poller()
        for source in (control, *monitors, self._waker.fileno()):
            self._poller.register(source, zmq.POLLIN)
        self.begin()

    def _may_answer_yet(self, silence: float) -> bool:
        return self._busy is not None and silence < BUSY_SILENCE_SECONDS and self._busy()

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
        if self._exit_report and self._exit_report(0) is not None:
            self._hear_all()
            self._lose("the server ended")
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

    def _lose(self, what: str) -> None:
        if self._stop.is_set() or self.lost is not None:
            return
        # A connection drops a moment before the process can be waited for.
        ended = self._exit_report(_LAST_WORDS_SECONDS) if self._exit_report else None
        super()._lose(what if ended is None else f"the server ended: {ended}")
