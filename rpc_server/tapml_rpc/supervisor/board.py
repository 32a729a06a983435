"""State that supervisor and worker share without messages: words in shared memory.

They can be read while a kernel hangs, while a socket is full, and after the worker has died. Each
word has one writer. Behind the words lie the headers of the batches that the worker took last.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from tapml_rpc import wire
from tapml_rpc.device.session_state import CommandClock, RunningBatch, place_in
from tapml_rpc.failures import render_command
from tapml_rpc.supervisor.pipe import HEAD_BYTES, make_memory
from tapml_targets.errors import ProtocolError

# As many as a session may have unanswered, short ones at least: one of them is running.
_BATCHES: Final = 64
_DATA_BYTES: Final = 4 * wire.MAX_HEADER_BYTES
# The head: how many batches, and how many bytes were written in all.
_HEAD: Final = struct.Struct("<QQ")
# Of each: its sequence, where it begins in all bytes written, and its bytes.
_ENTRY: Final = struct.Struct("<QQQ")
_DATA: Final = _HEAD.size + _BATCHES * _ENTRY.size
JOURNAL_BYTES: Final = _DATA + _DATA_BYTES
_SHOWN: Final = 5


class LastCommands:
    """Written by a worker, and read by its supervisor only when it is asked.

    `memory` has ``JOURNAL_BYTES``, all zero at first. What a reader finds is checked: a worker that
    runs anybody's kernels may have written anything.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def add(self, sequence: int, packed: bytes) -> None:
        """Note a batch, before it is run."""
        memory = self._memory
        count, end = _HEAD.unpack_from(memory)
        nbytes = len(packed)
        offset = end % _DATA_BYTES
        if offset + nbytes > _DATA_BYTES:
            end, offset = end + _DATA_BYTES - offset, 0
        memory[_DATA + offset : _DATA + offset + nbytes] = packed
        _ENTRY.pack_into(memory, _HEAD.size + count % _BATCHES * _ENTRY.size, sequence, end, nbytes)
        _HEAD.pack_into(memory, 0, count + 1, end + nbytes)

    def name(self, sequence: int, place: int) -> str:
        """A command in readable form; ``fence`` for what follows a batch's last one."""
        index, inner = place_in(place)
        for number, packed in self._batches():
            if number == sequence:
                commands = _commands(packed)
                if index >= len(commands):
                    return "fence"
                shown = render_command(commands[index])
                return shown if inner < 0 else f"{shown}, its command {inner}"
        return f"command {index} of batch {sequence}"

    def report(self, running: tuple[int, int, float] | None) -> str:
        """The last few commands up to the `running` (batch, place), one per line; may be empty."""
        shown: list[str] = []
        for sequence, packed in self._batches():
            commands = _commands(packed)
            if running is not None and sequence >= running[0]:
                # Later ones have not begun.
                commands = commands[: place_in(running[1])[0] + 1] if sequence == running[0] else []
            shown += [render_command(each) for each in reversed(commands[-_SHOWN:])]
            if len(shown) >= _SHOWN:
                break
        if not shown:
            return ""
        what = "received" if running is None else "begun"
        return f"\nlast commands {what}:\n  " + "\n  ".join(reversed(shown[:_SHOWN]))

    def close(self) -> None:
        """Release the memory."""
        self._memory.release()

    def _batches(self) -> Iterator[tuple[int, bytes]]:
        """The last ones first, as far as they have not been overwritten."""
        count, end = _HEAD.unpack_from(self._memory)
        for index in range(count - 1, max(count - _BATCHES, 0) - 1, -1):
            place = _HEAD.size + index % _BATCHES * _ENTRY.size
            sequence, start, nbytes = _ENTRY.unpack_from(self._memory, place)
            if end - start > _DATA_BYTES or nbytes > wire.MAX_HEADER_BYTES:
                return
            offset = _DATA + start % _DATA_BYTES
            yield sequence, bytes(self._memory[offset : offset + nbytes])


def _commands(packed: bytes) -> list[Any]:
    with suppress(ProtocolError):
        commands = wire.unpack(packed).get("commands")
        return commands if isinstance(commands, list) else []
    return []


# Asks a worker for its stack. LLVM, which many drivers load, takes both of the users' signals.
STACK_SIGNAL: Final = signal.SIGRTMIN + 5 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR1
_CANCEL: Final = 0
_SHARED: Final = 1
_SEQUENCE: Final = 2
_INDEX: Final = 3
_STARTED: Final = 4
_DEVICE_BYTES: Final = 5
_PAUSED: Final = 6
_SENDING: Final = 7
_MESSAGES: Final = 8
_TAKEN: Final = 9
_ANSWERED: Final = 10


def make_board() -> int:
    """A descriptor of memory for a board."""
    return make_memory(JOURNAL_BYTES, "board")


class _Word:
    """A word of a board, as an attribute; `shift` is what its value differs by.

    Once the memory is released, which other threads may read, it is 0.
    """

    def __init__(self, index: int, text: str, shift: int = 0) -> None:
        self._index, self.__doc__, self._shift = index, text, shift

    def __get__(self, board: Board, kind: type[Board]) -> int:
        try:
            return board._words[self._index] + self._shift
        except ValueError:
            return 0

    def __set__(self, board: Board, value: int) -> None:
        board._words[self._index] = value - self._shift


class Board:
    """One side. It owns `descriptor`, memory of :func:`make_board`.

    Other threads ask for a session's bytes and whether it is busy: a session whose words are gone
    holds and runs nothing. `last` are the batches that the worker took last. The supervisor writes
    `cancel_through` and `shared`, the worker everything else.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, HEAD_BYTES + JOURNAL_BYTES)
        os.close(descriptor)
        whole = memoryview(self._memory)
        self._words = whole[:HEAD_BYTES].cast("Q")
        self.last = LastCommands(whole[HEAD_BYTES:])

    cancel_through = _Word(_CANCEL, "Batches up to this one are not to be run; -1 for none.", -1)
    shared = _Word(_SHARED, "Whether other sessions have work for the device, too.")
    device_bytes = _Word(_DEVICE_BYTES, "Bytes of device memory the session holds.")
    paused = _Word(_PAUSED, "Whether the worker waits for others: its client, or a blob.")
    sending = _Word(_SENDING, "Whether the worker is within a message to its client.")
    messages = _Word(_MESSAGES, "How many messages the worker has taken.")
    taken = _Word(_TAKEN, "The batch that the worker took last; -1 for none.", -1)
    answered = _Word(_ANSWERED, "The batch answered last, written before it is sent; or -1.", -1)

    def take(self, sequence: int | None = None) -> None:
        """The worker has taken a message: the batch of this number, None for another."""
        if sequence is not None:
            self.taken = sequence
        self.messages += 1

    def begin(self, sequence: int, index: int, started_nanoseconds: int) -> None:
        """A command begins. The worker writes it; the start, which marks it valid, last."""
        words = self._words
        words[_SEQUENCE] = sequence
        words[_INDEX] = index
        words[_STARTED] = started_nanoseconds

    def rest(self) -> None:
        """No command runs."""
        self._words[_STARTED] = 0

    def running(self) -> tuple[int, int, float] | None:
        """Batch, command in it, and its start by the system's monotonic clock; None while idle."""
        words = self._words
        try:
            started = words[_STARTED]
            return (words[_SEQUENCE], words[_INDEX], started * 1e-9) if started else None
        except ValueError:
            return None

    def close(self) -> None:
        """Release the memory."""
        self._words.release()
        self.last.close()
        with suppress(BufferError):
            self._memory.close()


class BoardClock(CommandClock):
    """Writes to the board what runs."""

    def __init__(self, board: Board) -> None:
        self._words = board._words
        self.rest = board.rest  # type: ignore[method-assign]

    def begin(self, batch: RunningBatch) -> None:
        """Start the command's time, as :meth:`Board.begin` does."""
        words = self._words
        words[_SEQUENCE] = batch.message.sequence
        words[_INDEX] = batch.place
        words[_STARTED] = time.monotonic_ns()
