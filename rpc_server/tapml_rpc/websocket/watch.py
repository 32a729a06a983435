"""Watches a server over the control connection, from a thread of its own.

What :mod:`tapml_rpc.watch` is for ZeroMQ: heartbeats, silence, the server's last words. Nothing
here waits for payloads, and nothing that waits for payloads has to ask here: a loss is one
attribute.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeAlias

from tapml_rpc import wire
from tapml_rpc.failures import failure_from_wire
from tapml_rpc.websocket import frames
from tapml_rpc.websocket.incoming import EndedError
from tapml_rpc.websocket.stream import Stream
from tapml_targets.errors import DeviceLostError, TapmlError

PING_SECONDS: Final = 0.5
SILENCE_SECONDS: Final = 4.0
# A longer pause between two looks means that this process was stopped, not the server.
_STOPPED_SECONDS: Final = 1.0
_POLL_MILLISECONDS: Final = 100
_JOIN_SECONDS: Final = 2.0

Describe: TypeAlias = Callable[[TapmlError], TapmlError]


class Watch:
    """The watch over one session's server.

    Parameters
    ----------
    control
        The control connection after the welcome; this object's from now on.
    token
        The session's token.
    describe
        Adds to the message of a loss why, and what the caller was doing.

    Attributes
    ----------
    lost
        Why the session is over; None while it is not.
    pong
        The server's last answer to a ping; empty before the first.
    """

    def __init__(self, control: Stream, token: bytes, describe: Describe) -> None:
        self.lost: TapmlError | None = None
        self.pong: wire.Header = {}
        self._control = control
        self._token = token
        self._describe = describe
        self._outbox: deque[wire.Header] = deque()
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name="tapml-watch", daemon=True)
        self._thread.start()

    def post(self, header: wire.Header) -> None:
        """Send a control message; callable from any thread."""
        self._outbox.append(header)
        os.write(self._wake_writer, b".")

    def wait_for_loss(self, seconds: float) -> TapmlError | None:
        """Why the session is over, once the control connection has had time to say so."""
        self._ended.wait(seconds)
        return self.lost

    def close(self) -> None:
        """Say goodbye and stop; waits shortly."""
        self._stop.set()
        os.write(self._wake_writer, b".")
        self._thread.join(timeout=_JOIN_SECONDS)
        if not self._thread.is_alive():
            os.close(self._wake_reader)
            os.close(self._wake_writer)

    def _run(self) -> None:
        try:
            self._watch()
        except EndedError as error:
            self._lose(f"the server is gone: {error}")
        except (TapmlError, OSError) as error:
            self._lose(f"the control connection failed: {error}")
        if self.lost is None:
            with suppress(EndedError, TapmlError):
                self._send({"type": "goodbye"})
        self._ended.set()
        self._control.close()

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self._control.fileno(), select.POLLIN)
        poller.register(self._wake_reader, select.POLLIN)
        heard = looked = time.monotonic()
        next_ping = 0.0
        pings = 0
        while not self._stop.is_set() and self.lost is None:
            now = time.monotonic()
            if now - looked > _STOPPED_SECONDS:
                heard = now
            looked = now
            # Here and not after the poll: this thread may get its turn back late, with an answer
            # that has been waiting since.
            if now - heard > SILENCE_SECONDS:
                self._lose(f"the server has not answered for {now - heard:.0f} s")
                return
            if now >= next_ping:
                pings += 1
                self._send({"type": "ping", "sequence": pings})
                next_ping = now + PING_SECONDS
            while self._outbox:
                self._send(self._outbox.popleft())
            # First what TLS may hold already, which no poll shows.
            if self._hear_all():
                heard = time.monotonic()
            for descriptor, _ in poller.poll(_POLL_MILLISECONDS):
                if descriptor == self._wake_reader:
                    os.read(self._wake_reader, 4096)

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
            self._hear(wire.unpack(frames.split(message)[0]))
        return heard

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
        if not self._stop.is_set() and self.lost is None:
            self.lost = self._describe(DeviceLostError(what))
