"""Accepts connections on a forwarder's thread, also while the process has no descriptors left."""

from __future__ import annotations

import selectors
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from tapml_rpc.tracker.flow import Forwarder

_AT_ONCE: Final = 64
_REST_SECONDS: Final = 1.0


class Acceptor:
    """Accepts connections to a listening socket.

    The owner of the non-blocking `listener` closes it. `greet` takes a connection and its remote
    address, on the forwarder's thread.
    """

    def __init__(
        self,
        forwarder: Forwarder,
        listener: socket.socket,
        greet: Callable[[socket.socket, Any], None],
    ) -> None:
        self._forwarder = forwarder
        self._listener = listener
        self._greet = greet
        self._rests_until = 0.0
        self._said = False
        self._watch()

    def look(self) -> None:
        """Accept again after a pause; call it a few times a second."""
        if self._rests_until and time.monotonic() > self._rests_until:
            self._rests_until = 0.0
            self._watch()

    def _watch(self) -> None:
        self._forwarder.watch(self._listener.fileno(), selectors.EVENT_READ, self._ready)

    def _ready(self, events: int) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                self._said = False
                return
            except ConnectionError:
                # It left before it was accepted.
                continue
            except OSError as error:
                # Waiting connections stay ready to be accepted: the thread would do nothing but
                # fail.
                self._forwarder.forget(self._listener.fileno())
                self._rests_until = time.monotonic() + _REST_SECONDS
                if not self._said:
                    self._said = True
                    text = "new connections wait until others have ended"
                    print(f"tapml tracker: cannot accept: {error}; {text}", file=sys.stderr)
                return
            self._greet(connection, address)
