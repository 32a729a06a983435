"""Watches a server from a thread of its own: heartbeats, timeouts, a dropped connection, its end.

The thread owns the control socket. Nothing here waits for payloads, and nothing that waits for
payloads has to ask here: a loss is one attribute.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

import zmq
from zmq.utils.monitor import recv_monitor_message

from tapml_rpc import wire
from tapml_rpc.failures import failure_from_wire
from tapml_targets.errors import DeviceLostError, TapmlError

PING_SECONDS: Final = 0.5
SILENCE_SECONDS: Final = 4.0
# Answers that come at all come sooner.
_LATE_SECONDS: Final = 2.0
# A server of this machine that runs or waits for a processor is slow, not gone: a driver may
# compile for long on a busy machine and leave the thread that answers no turn.
BUSY_SILENCE_SECONDS: Final = 60.0
# A longer pause between two looks means that this process was stopped, not the server.
_STOPPED_SECONDS: Final = 1.0
_POLL_MILLISECONDS: Final = 100
_LAST_WORDS_SECONDS: Final = 1.0
# A server looks ten times a second whose data connection has gone, and then says so on control.
_WHY_SECONDS: Final = 2.0
# Servers whose libzmq looks for vanished hosts wait for 30 s.
BEAT_SECONDS: Final = 5.0

Socket: TypeAlias = zmq.Socket[bytes]
ExitReport: TypeAlias = Callable[[float], "str | None"]
Busy: TypeAlias = Callable[[], bool]


class Watch:
    """The watch over one session's server.

    Parameters
    ----------
    control
        The control socket after the welcome; this object's from now on.
    monitors
        Monitor sockets that report a dropped connection: that of control first, and that of data
        where libzmq has it.
    token
        The session's token.
    exit_report
        For a local server: how its process ended, or None while it runs; takes seconds to wait.
    busy
        For a local server: whether its process runs or waits for a processor or a disk.
    describe
        Adds to the message of a loss why, and what the caller was doing.

    Attributes
    ----------
    lost
        Why the session is over; None while it is not.
    pong
        The server's last answer to a ping; empty before the first.
    """

    def __init__(
        self,
        control: Socket,
        monitors: Sequence[Socket],
        token: bytes,
        *,
        exit_report: ExitReport | None,
        busy: Busy | None,
        describe: Callable[[TapmlError], TapmlError],
        beat: Callable[[], None],
    ) -> None:
        self.lost: TapmlError | None = None
        self.pong: wire.Header = {}
        self._control = control
        self._monitors = monitors
        self._token = token
        self._exit_report = exit_report
        self._busy = busy
        self._describe = describe
        self._beat = beat
        self._dropped = False
        self._pings = 0
        self._next_ping, self._next_beat = 0.0, time.monotonic() + BEAT_SECONDS
        self._ended = threading.Event()
        self._outbox: deque[wire.Header] = deque()
        self._stop = threading.Event()
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name="tapml-watch", daemon=True)
        self._thread.start()

    def post(self, header: wire.Header) -> None:
        """Send a control message; callable from any thread."""
        self._outbox.append(header)
        os.write(self._wake_writer, b".")

    def look_at_drop(self, seconds: float) -> None:
        """The data connection has dropped: wait so long for :attr:`lost` to say why."""
        self._dropped = True
        os.write(self._wake_writer, b".")
        self._ended.wait(seconds)

    def close(self) -> bool:
        """Say goodbye and stop; True when the thread has ended and its sockets may be closed."""
        self._stop.set()
        os.write(self._wake_writer, b".")
        self._thread.join(timeout=2)
        if self._thread.is_alive():
            return False
        os.close(self._wake_reader)
        os.close(self._wake_writer)
        return True

    def _run(self) -> None:
        try:
            self._watch()
        except (TapmlError, zmq.ZMQError) as error:
            self._lose(f"the control connection failed: {error}")
        if self.lost is None:
            with suppress(zmq.ZMQError):
                self._send({"type": "goodbye"})
        self._ended.set()

    def _watch(self) -> None:
        poller = zmq.Poller()
        for source in (self._control, *self._monitors, self._wake_reader):
            poller.register(source, zmq.POLLIN)
        heard = looked = working = time.monotonic()
        while not self._stop.is_set() and self.lost is None:
            now = time.monotonic()
            if now - looked > _STOPPED_SECONDS:
                heard = now
            looked = now
            # Between two looks it may have nothing to do for a moment: each look counts for long.
            if now - heard > _LATE_SECONDS and self._may_answer_yet(now - heard):
                working = now
            # Here and not after the poll: this thread may get its turn back late, with an answer
            # that has been waiting since.
            if now - max(heard, working) > SILENCE_SECONDS:
                self._lose(f"the server has not answered for {now - heard:.0f} s")
                return
            self._say_what_is_due(now)
            ready = dict(poller.poll(_POLL_MILLISECONDS))
            if self._wake_reader in ready:
                os.read(self._wake_reader, 4096)
            # What the server had to say comes before the news that it is gone.
            if self._control in ready:
                heard = time.monotonic()
                self._hear_all()
            if self._dropped or any(monitor in ready for monitor in self._monitors):
                self._hear_why()
                self._lose("the connection to the server dropped")
            if self._exit_report and self._exit_report(0) is not None:
                self._hear_all()
                self._lose("the server ended")

    def _say_what_is_due(self, now: float) -> None:
        if now >= self._next_ping:
            self._pings += 1
            self._send({"type": "ping", "sequence": self._pings})
            self._next_ping = now + PING_SECONDS
        if now >= self._next_beat:
            self._beat()
            self._next_beat = now + BEAT_SECONDS
        while self._outbox:
            self._send(self._outbox.popleft())

    def _may_answer_yet(self, silence: float) -> bool:
        return self._busy is not None and silence < BUSY_SILENCE_SECONDS and self._busy()

    def _send(self, header: wire.Header) -> None:
        self._control.send(wire.pack({**header, "session": self._token}), zmq.NOBLOCK)

    def _hear_all(self) -> None:
        with suppress(zmq.Again):
            while True:
                self._hear(wire.unpack(self._control.recv(zmq.NOBLOCK)))

    def _hear_why(self) -> None:
        """Hear what a dropped connection means, which control says unless it has dropped, too."""
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

    def _hear(self, header: wire.Header) -> None:
        kind = header.get("type")
        if kind == "pong":
            self.pong = header
        if self._stop.is_set() or kind not in ("event", "refused"):
            return
        error = failure_from_wire(header.get("error"))
        if kind == "refused":
            error = DeviceLostError(f"the server does not know this session any more: {error}")
        if self.lost is None:
            self.lost = self._describe(error)

    def _lose(self, what: str) -> None:
        if self._stop.is_set() or self.lost is not None:
            return
        # A dropped connection comes a moment before the process can be waited for.
        ended = self._exit_report(_LAST_WORDS_SECONDS) if self._exit_report else None
        if ended is not None:
            what = f"the server ended: {ended}"
        self.lost = self._describe(DeviceLostError(what))
