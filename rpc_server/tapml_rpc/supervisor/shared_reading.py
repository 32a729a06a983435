"""Who reads a data connection that a supervisor and a worker both hold, and how far that has come.

What was received and is no message yet lies in the memory, and so do the batches that the worker
took last: the supervisor can take the reading back at any time that the worker is not receiving,
also from one that runs a kernel, was stopped, or has died.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from tapml_rpc.supervisor.locked_memory import LockedMemory
from tapml_rpc.supervisor.pipe import NOWHERE
from tapml_rpc.zmtp.incoming import AHEAD_BYTES

# What a worker is told when it is to read, with its session, and with the memory the first time.
READING: Final = "reading"
# The place of what says that the worker reads no more.
READ_BACK: Final = NOWHERE - 2
# Who reads is written by the supervisor to the worker and by either back; the rest by the worker.
_LENT: Final = 0
_HALFWAY: Final = 1
_START: Final = 2
_END: Final = 3
_TAKEN: Final = 4
_MESSAGES: Final = 5
# The journal: the last batches, each its sequence, the bytes of its chunk and of its header.
_ENTRIES: Final = 16
ENTRY_BYTES: Final = 8 << 10
_ENTRY: Final = struct.Struct("<QQQ")
READING_BYTES: Final = AHEAD_BYTES + _ENTRIES * ENTRY_BYTES
MOST_HEADER_BYTES: Final = ENTRY_BYTES - _ENTRY.size
"""What a batch's header may take that a worker reads by itself."""
MOST_CHUNK_BYTES: Final = 32 << 10
"""What its chunk may. A longer one goes by the ring, or is received where the batch, if that is
one write, has it written to."""


class Taken(NamedTuple):
    """A batch that the worker has taken by itself."""

    sequence: int
    chunk_bytes: int
    packed: bytes


class SharedReading(LockedMemory):
    """One end. Everything is looked at and written by whoever has the lock, unless it says else.

    Parameters
    ----------
    descriptor
        ``READING_BYTES`` of memory, this object's from now on.

    Attributes
    ----------
    ahead
        What was received lies in ``ahead[start:end]``.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, READING_BYTES)
        self.ahead = self._bytes[:AHEAD_BYTES]
        self._journal = self._bytes[AHEAD_BYTES:]

    @property
    def lent(self) -> int:
        """Which time it is that the worker is to read; 0 while it is not.

        What the supervisor sent it before that time lies in the pipe, and comes first.
        """
        return self._words[_LENT]

    @lent.setter
    def lent(self, number: int) -> None:
        self._words[_LENT] = number

    @property
    def halfway(self) -> bool:
        """Whether the worker is receiving: where it died over that, bytes are lost.

        It has the lock meanwhile, but over a chunk that goes into the device's memory.
        """
        return bool(self._words[_HALFWAY])

    @halfway.setter
    def halfway(self, value: bool) -> None:
        self._words[_HALFWAY] = value

    @property
    def start(self) -> int:
        """See `ahead`."""
        return self._words[_START]

    @start.setter
    def start(self, position: int) -> None:
        self._words[_START] = position

    @property
    def end(self) -> int:
        """See `ahead`."""
        return self._words[_END]

    @end.setter
    def end(self, position: int) -> None:
        self._words[_END] = position

    @property
    def messages(self) -> int:
        """How many messages the worker has taken; may be looked at without the lock."""
        return self._words[_MESSAGES]

    def count_message(self) -> None:
        """The worker has taken one."""
        self._words[_MESSAGES] += 1

    def note(self, batch: Taken) -> None:
        """Write a batch into the journal before it is run."""
        count = self._words[_TAKEN]
        position = count % _ENTRIES * ENTRY_BYTES
        head = _ENTRY.pack(batch.sequence, batch.chunk_bytes, len(batch.packed))
        self._journal[position : position + len(head)] = head
        position += len(head)
        self._journal[position : position + len(batch.packed)] = batch.packed
        self._words[_TAKEN] = count + 1

    def taken_since(self, known: int) -> tuple[int, list[Taken]]:
        """How many batches the worker has taken, and the last of those after the first `known`.

        A worker writes here: what is out of bounds is left away.
        """
        count = self._words[_TAKEN]
        batches = []
        for index in range(max(known, count - _ENTRIES), count):
            position = index % _ENTRIES * ENTRY_BYTES
            sequence, chunk_bytes, nbytes = _ENTRY.unpack_from(self._journal, position)
            position += _ENTRY.size
            if nbytes <= MOST_HEADER_BYTES:
                packed = bytes(self._journal[position : position + nbytes])
                batches.append(Taken(sequence, chunk_bytes, packed))
        return count, batches

    def hand_over(self, number: int) -> None:
        """The worker reads once it is told this number; nothing has been received ahead."""
        self.start = self.end = 0
        self.lent = number

    def close(self) -> None:
        """See the base class."""
        if self.descriptor >= 0:
            self.ahead.release()
            self._journal.release()
        super().close()
