"""What a worker holds for its client: handles, credit, the batch that runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from tapml_rpc import wire
from tapml_rpc.device.libraries import BuiltLibrary
from tapml_rpc.device.program_body import ProgramBody
from tapml_targets.driver import Buffer
from tapml_targets.errors import InputError, ProtocolError
from tapml_targets.prepared_call import CallReport, RecordedCall

TOKEN_BYTES: Final = 16
EPOCH_BYTES: Final = 8


@dataclass
class HeldBuffer:
    """Device memory behind a handle."""

    buffer: Buffer
    nbytes: int


@dataclass
class BoundCall:
    """A call of a program, bound to its memory.

    `library` is its Library's handle, `built` the Library. `buffers` are all that it uses, with
    their handles. `checked` is the session's `releases` when all of that was last known to exist.
    """

    library: int
    built: BuiltLibrary
    call: RecordedCall
    buffers: tuple[tuple[int, HeldBuffer], ...]
    checked: int


@dataclass
class Message:
    """A received batch."""

    sequence: int
    commands: list[Any]
    chunk: memoryview


@dataclass
class ServerSession:
    """One client's state. Everything but `cancel_through` belongs to the device thread.

    Batches up to `cancel_through` are not to be run. The client is ready to take `download_credit`
    chunk bytes. `failure` is the first error since the last reset, in wire form. `spare` are freed
    buffers by size: a test that allocates the same tensors again gets the same memory, which
    saves the driver's work and keeps prepared calls valid. `bound` are calls of programs, by name
    and place. While `releases` of buffers and Libraries is unchanged, none of them has lost one.
    """

    download_credit: int
    buffers: dict[int, HeldBuffer] = field(default_factory=dict)
    libraries: dict[int, BuiltLibrary] = field(default_factory=dict)
    bound: dict[tuple[str, int], BoundCall] = field(default_factory=dict)
    programs: dict[str, ProgramBody] = field(default_factory=dict)
    releases: int = 0
    failure: dict[str, Any] | None = None
    queue: deque[Message] = field(default_factory=deque)
    job: Iterator[None] | None = None
    spare: dict[int, deque[Buffer]] = field(default_factory=dict)
    spare_bytes: int = 0
    nbytes: int = 0
    answered: int = 0
    cancel_through: int = -1

    def buffer(self, handle: object) -> HeldBuffer:
        """The memory behind a handle; raises InputError if nothing is allocated under it."""
        try:
            return self.buffers[handle]  # type: ignore[index]
        except (KeyError, TypeError):
            raise InputError(
                f"no buffer has the handle {str(handle)[:40]}: it was freed, or its allocation "
                "failed or was skipped on a poisoned session"
            ) from None

    def new_handle(self, handle: object, most: int) -> int:
        """Check a new handle of the client; raises if it is in use or one too many."""
        number = wire.integer(handle, "handle")
        if number in self.buffers or number in self.libraries:
            raise ProtocolError(f"handle {number} is in use")
        if len(self.buffers) + len(self.libraries) >= most:
            raise InputError(f"this session already holds {most} handles")
        return number


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
        """The buffer, first byte and length a command names; raises InputError if outside."""
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


class CommandClock:
    """Told what runs, before every command, which may take microseconds; here nobody reads it."""

    def begin(self, batch: RunningBatch) -> None:
        """The command of `batch` runs from now on, whatever ran before it."""

    def rest(self) -> None:
        """No command runs: no time passes for any."""
