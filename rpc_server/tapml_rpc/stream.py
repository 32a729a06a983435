"""A client's end of a connection: messages without a thread, and without a copy of a payload.

What is received is a little ahead of a parser, and the rest where it belongs.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from tapml_rpc.flow import send_parts
from tapml_rpc.transport import Check, EndedError

_POLL_MILLISECONDS: Final = 50
_CLOSE_SECONDS: Final = 0.2


class ReadAhead:
    """The receiving half of a non-blocking socket; ``_ahead[_start:_end]`` is not parsed yet."""

    def __init__(self, connection: socket.socket, nbytes: int) -> None:
        self._socket = connection
        self._ahead = memoryview(bytearray(nbytes))
        self._start = self._end = 0

    def _have(self, nbytes: int) -> bool:
        """Receive until so many bytes are ahead; False if too few have come."""
        while self._end - self._start < nbytes:
            if not self._fill():
                return False
        return True

    def _pop(self, nbytes: int) -> bytes:
        """Take bytes that are ahead."""
        start, self._start = self._start, self._start + nbytes
        return bytes(self._ahead[start : self._start])

    def _fill(self) -> bool:
        """Receive into the memory ahead; False if nothing has come."""
        if self._start:
            have = self._end - self._start
            self._ahead[:have] = bytes(self._ahead[self._start : self._end])
            self._start, self._end = 0, have
        count = self._receive(self._ahead[self._end :])
        self._end += count
        return count > 0

    def _take_into(self, target: memoryview) -> int:
        """Receive into `target`, what is ahead first; how much, 0 if nothing has come."""
        have = min(self._end - self._start, len(target))
        if not have:
            return self._receive(target)
        target[:have] = self._ahead[self._start : self._start + have]
        self._start += have
        return have

    def _receive(self, target: memoryview) -> int:
        try:
            count = self._socket.recv_into(target)
        except (BlockingIOError, InterruptedError):
            return 0
        except (OSError, ValueError) as error:
            if self._is_for_later(error):
                return 0
            raise EndedError(f"the connection dropped: {error}") from None
        if not count:
            raise EndedError("the connection dropped")
        return count

    def _is_for_later(self, error: Exception) -> bool:
        """Whether an error only says that nothing has come yet."""
        return False


class Incoming(Protocol):
    """The receiving half of a connection."""

    def next(self) -> Any:
        """The next message; None if it is incomplete."""

    def forget(self) -> None:
        """Release all memory; the connection has ended."""


class SocketStream:
    """What all streams over a socket have; used by one thread at a time.

    It owns the connected socket.
    """

    _incoming: Incoming

    def __init__(self, connection: socket.socket) -> None:
        # Two marks, because one thread may send a sign of life while another receives.
        self._half_sent = self._half_received = False
        self._socket = connection
        connection.setblocking(False)
        self._poll_in, self._poll_out = select.poll(), select.poll()
        self._poll_in.register(connection, select.POLLIN)
        self._poll_out.register(connection, select.POLLOUT)

    @property
    def torn(self) -> bool:
        """Whether an exception such as Ctrl-C may have left a frame half sent or counted."""
        return self._half_sent or self._half_received

    def fileno(self) -> int:
        """What a poller takes."""
        return self._socket.fileno()

    def abort(self) -> None:
        """Close without a goodbye."""
        self._socket.close()
        # The memory of a read that has come only in part is not kept.
        self._incoming.forget()

    def _next(self, wait_milliseconds: int) -> Any:
        """The next message; None if none comes in time. It may be marked as half received."""
        self._half_received = True
        while (message := self._incoming.next()) is None:
            # Everything received is counted: an interrupt here does no harm.
            self._half_received = False
            if not wait_milliseconds or not self._poll_in.poll(wait_milliseconds):
                return None
            self._half_received = True
        return message

    def _send_all(self, parts: list[memoryview], check: Check | None) -> None:
        """Send `parts`, calling `check` now and then while the peer takes nothing."""
        while parts:
            try:
                if send_parts(self._socket, parts):
                    continue
            except (OSError, ValueError) as error:
                raise EndedError(f"the connection dropped: {error}") from None
            self._poll_out.poll(_POLL_MILLISECONDS)
            if check is not None:
                check()

    def _close(self, send: Callable[[Check], None], how: int) -> None:
        """Send a last message if the peer takes it soon, shut down by `how`, and close."""
        deadline = time.monotonic() + _CLOSE_SECONDS

        def check() -> None:
            if time.monotonic() > deadline:
                raise EndedError("the peer takes nothing")

        with suppress(EndedError):
            send(check)
        with suppress(OSError):
            self._socket.shutdown(how)
        self.abort()
