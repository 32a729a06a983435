"""A client's unanswered messages: whose each answer is, and where its bytes go."""

from __future__ import annotations

from typing import Any

from tapml_rpc import wire
from tapml_rpc.failures import failure_from_wire
from tapml_rpc.pending import Pending, PendingResults, fresh_memory
from tapml_rpc.transport import Ticket
from tapml_targets.errors import DeviceLostError, ProtocolError, TapmlError

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
        """Memory for the chunk that follows a header: its read's, or new memory.

        The chunk is that of the next message that :meth:`take` takes.
        """
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


def _read(ticket: Ticket, header: dict[str, Any]) -> Pending:
    pending = ticket.find(header.get("index"))
    if pending is None:
        raise ProtocolError("the server sent bytes that no read asked for")
    return pending
