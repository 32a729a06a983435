"""A long payload on its way from the client's connection into the device's memory.

A worker that reads its client's connection itself need not have all of a payload before it runs the
batch: the one write that the batch consists of says where the bytes belong, and they are received
there. What nobody wants, as the handle is wrong or the stream poisoned, is received all the same,
and forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_SINK: Final = memoryview(bytearray(256 << 10))


def is_one_write(commands: list[Any], nbytes: int) -> bool:
    """Whether a batch is one write of its whole chunk of `nbytes`, as far as its header tells."""
    write = commands[0] if len(commands) == 1 else None
    if not isinstance(write, list) or write[:1] != ["write"]:
        return False
    # Equal are 0.0 and False, too.
    return write[3:] == [nbytes, 0] and type(write[4]) is int


class ArrivingChunk:
    """See :class:`tapml_rpc.server_session.Arriving`.

    Parameters
    ----------
    nbytes
        Of the whole chunk.
    ahead
        What of it was received already.
    receive
        Receives more of it: at least a byte, or raises ClientGoneError.
    whole
        Called when all of it has been received.
    """

    def __init__(
        self,
        nbytes: int,
        ahead: bytes,
        receive: Callable[[memoryview], int],
        whole: Callable[[], None],
    ) -> None:
        self.nbytes = nbytes
        self._ahead = ahead
        # Counted piece by piece: whatever goes wrong, the next message begins after the last one.
        self._missing = nbytes - len(ahead)
        self._receive = receive
        self._whole = whole

    def receive_into(self, memory: memoryview) -> None:
        """See the protocol."""
        memory[: len(self._ahead)] = self._ahead
        while self._missing:
            self._missing -= self._receive(memory[self.nbytes - self._missing :])
        self._whole()

    def finish(self) -> None:
        """See the protocol."""
        while self._missing:
            self._missing -= self._receive(_SINK[: self._missing])
        self._whole()
