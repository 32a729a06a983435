"""A client's unanswered messages: whose each answer is, and where its bytes go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from tapml_rpc import wire
from tapml_rpc.failures import failure_from_wire
from tapml_rpc.welcome import Bounds
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import DeviceLostError, InputError, ProtocolError, TapmlError

Check: TypeAlias = Callable[[], None]


class EndedError(Exception):
    """The connection has ended; the message says how."""


class DataConnection(Protocol):
    """Messages to and from a server; used by one thread at a time.

    `memory_is_reused`: a chunk lies in memory that the next :meth:`receive` overwrites.
    """

    memory_is_reused: bool

    @property
    def torn(self) -> bool:
        """Whether an exception may have left a message half sent or half received."""

    def send(
        self, packed: bytes, chunk: bytes | memoryview = b"", check: Check | None = None
    ) -> None:
        """Send a message: a header and, if it has one, a chunk.

        `check` is called now and then while the server takes nothing; what it raises ends the wait.
        Raises EndedError if the connection is gone.
        """

    def receive(self, wait_milliseconds: int) -> tuple[bytes | memoryview, memoryview] | None:
        """The next message's header and chunk; None if it is not complete in time.

        Raises EndedError if the connection is gone, ProtocolError for a message that is out of
        bounds.
        """

    def close(self, packed: bytes) -> None:
        """Send a last message if the server takes it, and close. Never raises."""

    def abort(self) -> None:
        """Close without a goodbye."""


@dataclass(frozen=True)
class CallResult:
    """What a call reported.

    `kernel_nanoseconds` is the time in kernels as the device measured it; None if not asked
    for. `damaged_guards` are workspaces around which a kernel wrote, if they were poisoned.
    """

    kernel_nanoseconds: int | None
    damaged_guards: tuple[str, ...]


Result = TypeVar("Result")


class Pending(Generic[Result]):
    """A result that has not come: a plain value, unless a subclass says otherwise."""

    __slots__ = ("_error", "_ready", "_value")

    def __init__(self) -> None:
        self._ready = False
        self._value: Any = None
        self._error: TapmlError | None = None

    def fail(self, error: TapmlError) -> None:
        """Note that the result will not come, and why."""
        if not self._ready:
            self._ready = True
            self._error = error

    def room(self, offset: int, nbytes: int) -> memoryview:
        """Where the next piece of a streamed result belongs."""
        raise ProtocolError("the server streamed a result that has no bytes")

    def arrived(self, nbytes: int) -> None:
        """Note that the last :meth:`room` has been filled."""

    def place(self, offset: int, data: memoryview) -> None:
        """Take a piece of a streamed result from elsewhere."""
        self.room(offset, len(data))[:] = data
        self.arrived(len(data))

    def resolve(self, value: Any, chunk: memoryview) -> None:
        """Take the value in the answer; `chunk` is the answer's."""
        self._value = value
        self._ready = True

    def result(self) -> Result:
        """The result; raises InputError before its batch has ended, or the command's error."""
        if not self._ready:
            raise InputError("this result comes when its batch ends: leave the `with` block first")
        if self._error is not None:
            raise self._error
        value: Result = self._value
        return value


PendingResults: TypeAlias = "dict[int | tuple[int, int], Pending[Any]]"
"""Expected results, by the command that gives them: in a batch, or in a program it runs."""


class PendingRead(Pending[memoryview]):
    """The future result of a read: a memoryview of `nbytes` bytes."""

    __slots__ = ("_received", "_streamed", "nbytes")

    def __init__(self, nbytes: int) -> None:
        super().__init__()
        self.nbytes = nbytes
        self._streamed = False
        self._received = 0

    def room(self, offset: int, nbytes: int) -> memoryview:
        """Where a piece belongs; pieces come in order."""
        if offset != self._received or offset + nbytes > self.nbytes:
            raise ProtocolError(
                f"the server sent bytes {offset} to {offset + nbytes} of a read of {self.nbytes}"
            )
        if not self._streamed:
            self._streamed = True
            self._value = fresh_memory(self.nbytes)
        piece: memoryview = self._value[offset : offset + nbytes]
        return piece

    def arrived(self, nbytes: int) -> None:
        """Count a piece."""
        self._received += nbytes

    def resolve(self, value: Any, chunk: memoryview) -> None:
        """Take ``[position, length]`` in the chunk, or the length of what was streamed."""
        if self._streamed:
            if self._received != self.nbytes:
                raise ProtocolError(f"{self._received} of {self.nbytes} bytes came")
        else:
            position, length = wire.array(value, "read result", 2)
            start = wire.integer(position, "position")
            if length != self.nbytes or start + length > len(chunk):
                raise ProtocolError(f"an answer of {length} bytes to a read of {self.nbytes}")
            self._value = chunk[start : start + length]
        self._ready = True


def fresh_memory(nbytes: int) -> memoryview:
    """Memory to receive into: numpy, if installed, does not clear it first."""
    try:
        import numpy as np
    except ModuleNotFoundError:
        return memoryview(bytearray(nbytes))
    return np.empty(nbytes, np.uint8).data


class PendingCall(Pending[CallResult]):
    """The report of a timed or poisoned call, a :class:`CallResult`."""

    __slots__ = ()

    def resolve(self, value: Any, chunk: memoryview) -> None:
        """Take ``[nanoseconds or nil, damaged workspaces]``."""
        nanoseconds, damaged = wire.array(value, "call result", 2)
        self._value = CallResult(
            None if nanoseconds is None else wire.integer(nanoseconds, "nanoseconds"),
            tuple(wire.text(name, "workspace") for name in wire.array(damaged, "workspaces")),
        )
        self._ready = True


class Ticket:
    """A message under way and its future answer: a batch's results, or one value.

    `value` is the answer to a message other than a batch, `failure` the error that came instead.
    """

    __slots__ = ("chunk_bytes", "done", "failure", "pending", "sequence", "value")

    def __init__(self, sequence: int, chunk_bytes: int, pending: PendingResults) -> None:
        self.sequence = sequence
        self.chunk_bytes = chunk_bytes
        self.pending = pending
        self.done = False
        self.failure: TapmlError | None = None
        self.value: Any = None

    def answer(self, header: wire.Header, chunk: memoryview) -> None:
        """Take the answer: its results, or the error instead of them."""
        self.value = header.get("value")
        for result in wire.array(header.get("results", []), "results"):
            index, value = wire.array(result, "result", 2)
            pending = self.find(index)
            if pending is not None:
                pending.resolve(value, chunk)
        self.finish(header)

    def find(self, index: Any) -> Pending[Any] | None:
        """The result of a command of the batch, or of one inside the program which that runs."""
        if type(index) is list and len(index) == 2:
            index = tuple(wire.integer(each, "index") for each in index)
        else:
            wire.integer(index, "index")
        return self.pending.get(index)

    def finish(self, header: wire.Header) -> None:
        """Note that the batch is answered; missing results will not come."""
        failure = header.get("error")
        if failure is not None:
            self.failure = failure_from_wire(failure)
        if self.pending:
            missing = self.failure or ProtocolError("the server's answer lacks a result")
            for pending in self.pending.values():
                pending.fail(missing)
        self.done = True


class Transport(Protocol):
    """Sends batches to a device and brings their answers; used by one thread at a time.

    `device`, `epoch`, `features` and `bounds` are what the other end's welcome says of itself,
    `address` is for people.
    """

    device: DeviceDescription
    address: str
    epoch: bytes
    features: frozenset[str]
    bounds: Bounds
    closed: bool

    def send(
        self,
        commands: list[list[Any]],
        chunk: memoryview | bytes,
        pending: PendingResults | None = None,
    ) -> Ticket:
        """Send a batch; waits only while there is no room for it.

        `chunk` is the payload of all writes; a large one must not change until it is answered.
        `pending` are the results of `commands` by index of the command; inside a program by that of
        the command that runs it and that in the program.
        """

    def wait(self, ticket: Ticket) -> None:
        """Wait for an answer; raises DeviceLostError, or a subclass, if the other end is gone."""

    def request(self, fields: dict[str, Any], chunk: memoryview | bytes = b"") -> Ticket:
        """Send a message other than a batch, within the same bounds and in order with batches.

        The session, epoch and sequence number are added to `fields`, which include ``type``. A
        large `chunk` must not change until it is answered. The ticket's `value` comes with the
        answer.
        """

    def drain(self) -> bool:
        """Take the answers that are there; True when no batch is under way."""

    def cancel(self) -> None:
        """Ask to skip the batches sent so far; a running kernel is not stopped."""

    def close(self) -> None:
        """End the connection. Never raises and never waits long."""


_ANSWERS = ("done", "blob-done")


class Unanswered:
    """The messages of one session under way, by their sequence numbers.

    `sequence` is the last number, 0 before the first; `upload_bytes` are those of all their chunks.
    """

    def __init__(self) -> None:
        self.sequence = 0
        self.upload_bytes = 0
        self._tickets: dict[int, Ticket] = {}
        # The header whose chunk is arriving, and whether that is received into its read's memory.
        self._arriving: wire.Header | None = None
        self._placed = False

    def __len__(self) -> int:
        return len(self._tickets)

    def next(self, chunk_bytes: int, pending: PendingResults) -> Ticket:
        """A ticket with the next number; it counts once it is added."""
        self.sequence += 1
        return Ticket(self.sequence, chunk_bytes, pending)

    def add(self, ticket: Ticket) -> None:
        """Count a ticket, just before its message is sent."""
        self._tickets[ticket.sequence] = ticket
        self.upload_bytes += ticket.chunk_bytes

    def place(self, packed: bytes, nbytes: int) -> memoryview:
        """Memory for the chunk that follows this header: its read's, or new memory."""
        header = self._arriving = wire.unpack(packed)
        ticket = self._tickets.get(header.get("sequence", -1))
        if header.get("type") != "data" or ticket is None:
            return fresh_memory(nbytes)
        offset = wire.integer(header.get("offset"), "offset")
        memory = _read(ticket, header).room(offset, nbytes)
        self._placed = True
        return memory

    def take(
        self, packed: bytes | memoryview, chunk: memoryview, *, copy: bool
    ) -> tuple[int, TapmlError | None]:
        """Pass a message to its ticket.

        With `copy` an answer's chunk is copied, because its memory is reused. Returns the bytes of
        read results that it brought, which need new credit; and a failure of no single message: the
        session's end if it is a :class:`DeviceLostError`. Raises ProtocolError for anything that
        was not asked for.
        """
        header, self._arriving = self._arriving, None
        placed, self._placed = self._placed, False
        if header is None:
            header = wire.unpack(packed)
        kind = header.get("type")
        ticket = self._tickets.get(header.get("sequence", -1))
        if kind == "error":
            return 0, self._refused(ticket, header)
        if ticket is None:
            return 0, None
        if kind == "data":
            pending = _read(ticket, header)
            if placed:
                pending.arrived(len(chunk))
            else:
                pending.place(wire.integer(header.get("offset"), "offset"), chunk)
            return len(chunk), None
        if kind in _ANSWERS:
            ticket.answer(header, memoryview(bytes(chunk)) if copy else chunk)
            self._forget(ticket)
        return 0, None

    def _refused(self, ticket: Ticket | None, header: wire.Header) -> TapmlError | None:
        failure = failure_from_wire(header.get("error"))
        if ticket is None or isinstance(failure, DeviceLostError):
            return failure
        ticket.finish(header)
        self._forget(ticket)
        return None

    def _forget(self, ticket: Ticket) -> None:
        del self._tickets[ticket.sequence]
        self.upload_bytes -= ticket.chunk_bytes


def _read(ticket: Ticket, header: dict[str, Any]) -> Pending[Any]:
    pending = ticket.find(header.get("index"))
    if pending is None:
        raise ProtocolError("the server sent bytes that no read asked for")
    return pending
