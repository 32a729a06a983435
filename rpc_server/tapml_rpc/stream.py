"""Receiving from a socket: a little ahead of a parser, and the rest to where it belongs."""

from __future__ import annotations

import socket

from tapml_rpc.transport import EndedError


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
