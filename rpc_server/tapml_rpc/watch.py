"""Watches a server from a separate thread: heartbeats, silence, its last messages, its end.

The thread owns the control connection. Nothing here waits for payloads, and the payloads' thread
need not ask here: a loss is one attribute.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, Final, TypeAlias
from weakref import finalize

from tapml_rpc import wire
from tapml_rpc.failures import failure_from_wire
from tapml_rpc.transport import EndedError
from tapml_rpc.waking import Waker
from tapml_targets.errors import DeviceLostError, TapmlError

PING_SECONDS: Final = 0.5
SILENCE_SECONDS: Final = 4.0
POLL_MILLISECONDS: Final = 100
# A longer pause between two checks means that this process was stopped, not the server.
_STOPPED_SECONDS: Final = 1.0
# The control connection ends within this time in any case: its watch guarantees that.
_CAUSE_SECONDS: Final = SILENCE_SECONDS + 1
_JOIN_SECONDS: Final = 2.0

Describe: TypeAlias = Callable[[TapmlError], TapmlError]


class Watch:
    """The watch over one session's server; each binding has its own.

    `describe` adds to the message of a loss why, and what the caller was doing. `lost` says why the
    session is over; None while it is not. `pong` is the server's last answer to a ping, at first
    empty.
    """

    # What the control connection may fail with.
    failures: ClassVar[tuple[type[Exception], ...]] = (TapmlError, OSError)

    def __init__(self, token: bytes, describe: Describe) -> None:
        self.lost: TapmlError | None = None
        self.pong: wire.Header = {}
        self._token = token
        self._describe = describe
        # The end of the data connection, as its owner has found.
        self._dropped = False
        self._outbox: deque[wire.Header] = deque()
        self._pings = 0
        self._next_ping = 0.0
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._waker = Waker()
        # A lost session may be forgotten without a call of close().
        finalize(self, self._waker.close).atexit = False
        self._thread = threading.Thread(target=self._run, name="tapml-watch", daemon=True)

    def begin(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def post(self, header: wire.Header) -> None:
        """Send a control message; callable from any thread."""
        self._outbox.append(header)
        self._waker.wake()

    def cause(self, ended: EndedError) -> TapmlError:
        """Why the data connection has ended, as the server's last messages say."""
        self._dropped = True
        self._waker.wake()
        self._ended.wait(_CAUSE_SECONDS)
        return self.lose(DeviceLostError(f"the server is gone: {ended}"))

    def lose(self, error: TapmlError) -> TapmlError:
        """Note why the session is over; returns the first such error."""
        if self.lost is None:
            self.lost = self._describe(error)
        return self.lost

    def close(self) -> bool:
        """Send a goodbye and stop; True when the thread has ended and its sockets may be closed."""
        self._stop.set()
        self._waker.wake()
        self._thread.join(timeout=_JOIN_SECONDS)
        if self._thread.is_alive():
            return False
        self._waker.close()
        return True

    def _look(self) -> bool:
        """Wait shortly for messages and handle them; whether the server was heard."""
        raise NotImplementedError

    def _send(self, header: wire.Header) -> None:
        """Send a message over the control connection, adding the session's token."""
        raise NotImplementedError

    def _run(self) -> None:
        try:
            self._watch()
        except EndedError as error:
            self._lose(f"the server is gone: {error}")
        except self.failures as error:
            self._lose(f"the control connection failed: {error}")
        if self.lost is None:
            with suppress(EndedError, *self.failures):
                self._send({"type": "goodbye"})
        self._ended.set()

    def _watch(self) -> None:
        heard = looked = time.monotonic()
        while not self._stop.is_set() and self.lost is None:
            now = time.monotonic()
            if now - looked > _STOPPED_SECONDS:
                heard = now
            looked = now
            # Here and not after the check: this thread may get its turn back late, with an answer
            # that has been waiting since.
            if now - heard > SILENCE_SECONDS:
                self._lose(f"the server has not answered for {now - heard:.0f} s")
                return
            self._say_what_is_due(now)
            if self._look():
                heard = time.monotonic()

    def _say_what_is_due(self, now: float) -> None:
        if now >= self._next_ping:
            self._pings += 1
            self._send({"type": "ping", "sequence": self._pings})
            self._next_ping = now + PING_SECONDS
        while self._outbox:
            self._send(self._outbox.popleft())

    def _hear(self, packed: bytes | memoryview) -> None:
        header = wire.unpack(packed)
        kind = header.get("type")
        if kind == "pong":
            self.pong = header
        if self._stop.is_set() or kind not in ("event", "refused"):
            return
        error = failure_from_wire(header.get("error"))
        if kind == "refused":
            error = DeviceLostError(f"the server does not know this session any more: {error}")
        self.lose(error)

    def _lose(self, what: str) -> None:
        if not self._stop.is_set():
            self.lose(DeviceLostError(what))
