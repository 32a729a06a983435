"""What supervisor and worker tell each other without a message: words in shared memory.

They are there while a kernel hangs, while a socket is full, and after the worker has died. Each
word has one writer.
"""

from __future__ import annotations

import signal
from typing import Final

from tapml_rpc.supervisor.ring import FREE_WORDS, Ring

# Asks a worker where it is. LLVM, which many drivers hold, takes both of the users' signals.
STACK_SIGNAL: Final = signal.SIGRTMIN + 5 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR1
_CANCEL: Final = FREE_WORDS
_SEQUENCE: Final = FREE_WORDS + 1
_INDEX: Final = FREE_WORDS + 2
_STARTED: Final = FREE_WORDS + 3
_DEVICE_BYTES: Final = FREE_WORDS + 4
_SHARED: Final = FREE_WORDS + 5
_PAUSED: Final = FREE_WORDS + 6
_RECEIVES: Final = FREE_WORDS + 7
_OPENS_MEMORY: Final = FREE_WORDS + 8


class Board:
    """The words, on the head of the ring that leads to the worker.

    What is said of a session to others, its bytes and what it runs, is asked by other threads than
    its own: it holds and runs nothing once the words are gone.
    """

    def __init__(self, ring: Ring) -> None:
        self._words = ring.words

    @property
    def cancel_through(self) -> int:
        """Batches up to this one are not to be run; -1 for none. The supervisor writes it."""
        return self._words[_CANCEL] - 1

    @cancel_through.setter
    def cancel_through(self, sequence: int) -> None:
        self._words[_CANCEL] = sequence + 1

    @property
    def device_bytes(self) -> int:
        """Device memory the session holds. The worker writes it."""
        try:
            return self._words[_DEVICE_BYTES]
        except ValueError:
            return 0

    @device_bytes.setter
    def device_bytes(self, nbytes: int) -> None:
        self._words[_DEVICE_BYTES] = nbytes

    @property
    def shared(self) -> bool:
        """Whether other sessions have work for the device as well. The supervisor writes it."""
        return bool(self._words[_SHARED])

    @shared.setter
    def shared(self, value: bool) -> None:
        self._words[_SHARED] = value

    @property
    def paused(self) -> bool:
        """Whether it waits for its client to take bytes, or to send them. The worker writes it."""
        return bool(self._words[_PAUSED])

    @paused.setter
    def paused(self, value: bool) -> None:
        self._words[_PAUSED] = value

    @property
    def receives(self) -> bool:
        """Whether a payload is arriving for the ring. The supervisor writes it."""
        return bool(self._words[_RECEIVES])

    @receives.setter
    def receives(self, value: bool) -> None:
        self._words[_RECEIVES] = value

    @property
    def opens_memory(self) -> bool:
        """Whether payloads can be received into the device's memory. The worker writes it."""
        return bool(self._words[_OPENS_MEMORY])

    @opens_memory.setter
    def opens_memory(self, value: bool) -> None:
        self._words[_OPENS_MEMORY] = value

    def begin(self, sequence: int, index: int, started_nanoseconds: int) -> None:
        """A command begins. The worker writes it; the start, which says that there is one, last."""
        words = self._words
        words[_SEQUENCE] = sequence
        words[_INDEX] = index
        words[_STARTED] = started_nanoseconds

    def rest(self) -> None:
        """No command runs."""
        self._words[_STARTED] = 0

    def running(self) -> tuple[int, int, float] | None:
        """Batch, command in it, and start by the system's monotonic clock; None while idle."""
        words = self._words
        try:
            started = words[_STARTED]
            return (words[_SEQUENCE], words[_INDEX], started * 1e-9) if started else None
        except ValueError:
            return None
