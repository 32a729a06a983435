"""A batch while it runs, with the answer so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from tapml_rpc import wire
from tapml_rpc.server_session import HeldBuffer, Message, ServerSession
from tapml_targets.errors import InputError, ProtocolError
from tapml_targets.prepared_call import CallReport

# Places in a batch are below this, and so are those in a program.
_PLACES: Final = 1 << 16
AFTER_ALL: Final = _PLACES - 1
"""The place of what comes after a batch's last command."""

Index: TypeAlias = "int | list[int]"
"""What a result belongs to: a command of the batch, or that and the command of its program."""


@dataclass
class RunningBatch:
    """A batch being run and its future answer.

    `command` runs now; `place` encodes its position, see :func:`place_in`. `program` is None
    outside of any; `chunk_base` is the position of the running program's payload in the chunk.
    """

    session: ServerSession
    message: Message
    results: list[list[Any]] = field(default_factory=list)
    inline: list[memoryview | bytes] = field(default_factory=list)
    inline_bytes: int = 0
    timed: list[tuple[list[Any], CallReport]] = field(default_factory=list)
    command: object = None
    place: int = 0
    program: str | None = None
    chunk_base: int = 0
    _executed: int = field(default=0, init=False)

    def enter(self, program: str, index: int, inner: int, command: list[Any]) -> None:
        """Begin command `inner` of the program that command `index` runs."""
        self.program = program
        self.command, self.place = command, index + (inner + 1) * _PLACES

    def leave(self) -> None:
        """The program has ended."""
        self.program, self.chunk_base = None, 0

    def count(self, commands: int, most: int) -> None:
        """Count a program's commands, bounded by the number that a batch may have itself."""
        self._executed += commands
        if self._executed > most:
            raise InputError(
                f"the programs of this batch would run {self._executed} commands; at most {most} "
                "are run for one batch: send several"
            )

    def give(self, index: Index, value: Any) -> None:
        """Put a command's result into the answer."""
        self.results.append([index, value])

    def span(self, handle: object, offset: object, nbytes: object) -> tuple[HeldBuffer, int, int]:
        """The part of a buffer a command names: the buffer, the first byte, and how many.

        Raises InputError if the session has no such buffer, or it ends before.
        """
        held = self.session.buffer(handle)
        start = wire.integer(offset, "byte offset")
        length = wire.integer(nbytes, "byte count")
        if start + length > held.nbytes:
            raise InputError(
                f"bytes {start} to {start + length} lie outside buffer {handle} of "
                f"{held.nbytes} bytes"
            )
        return held, start, length

    def window(self, offset: object, nbytes: object) -> memoryview:
        """The part of the chunk a command names."""
        start = self.chunk_base + wire.integer(offset, "chunk offset")
        length = wire.integer(nbytes, "byte count")
        if start + length > len(self.message.chunk):
            raise ProtocolError(
                f"command names bytes {start} to {start + length} of a chunk of "
                f"{len(self.message.chunk)}"
            )
        return self.message.chunk[start : start + length]


def place_in(place: int) -> tuple[int, int]:
    """The command of the batch, and that of the program it runs; -1 if no program runs."""
    inner, index = divmod(place, _PLACES)
    return index, inner - 1
