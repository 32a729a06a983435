"""Commands that wait to be sent: small ones together, large payloads separately."""

from __future__ import annotations

from typing import Any, Final

from tapml_rpc import wire
from tapml_rpc.transport import Pending, PendingResults, Ticket, Transport
from tapml_targets.errors import InputError, TapmlError

# A payload from this size on goes in its own messages, straight from the caller's memory; below,
# joining payloads into one chunk costs less than another message.
LARGE_BYTES: Final = 256 << 10
PIECE_BYTES: Final = 1 << 20
_PIECE_ALIGNMENT: Final = 64
_CHUNK_BYTES: Final = 1 << 20
_HEADER_BYTES: Final = 256 << 10
_COMMANDS: Final = 512
_REMEMBERED: Final = 256
# Commands that make a handle or a name, or end it.
_HANDLES: Final = frozenset({"allocate", "forget", "free", "program", "unload"})
_PADDING: Final = (b"", *(bytes(count) for count in range(1, wire.CHUNK_ALIGNMENT)))


class CommandQueue:
    """Builds batches for a link; `sent` are batches sent and not yet waited for."""

    def __init__(self, link: Transport) -> None:
        self.sent: list[Ticket] = []
        self._link = link
        self._commands: list[list[Any]] = []
        self._pieces: list[bytes | memoryview] = []
        self._pending: PendingResults = {}
        self._chunk_bytes = 0
        self._header_bytes = 0
        # Commands, pieces and bytes of pieces that were there when the open batch began.
        self._begun = (0, 0, 0)

    def __len__(self) -> int:
        return len(self._commands)

    def add(
        self,
        command: list[Any],
        header_bytes: int = 32,
        pending: Pending[Any] | dict[int, Pending[Any]] | None = None,
    ) -> None:
        """Queue a command; a full queue is sent.

        `header_bytes` is about its length on the wire. `pending` are its results, for a command
        that runs a program by their places in that.
        """
        if self._header_bytes + header_bytes > _HEADER_BYTES or len(self._commands) >= _COMMANDS:
            self.flush()
        if isinstance(pending, Pending):
            self._pending[len(self._commands)] = pending
        elif pending:
            for place, each in pending.items():
                self._pending[len(self._commands), place] = each
        self._commands.append(command)
        self._header_bytes += header_bytes

    def add_write(self, handle: int, offset: int, data: memoryview | bytes) -> None:
        """Queue a write; `data` must not change until the batch is sent, and answered if large."""
        size = len(data)
        if size >= LARGE_BYTES:
            self.flush()
            step = _piece_bytes(size)
            for start in range(0, size, step):
                piece = data[start : start + step]
                command = ["write", handle, offset + start, len(piece), 0]
                self.sent.append(self._link.send([command], piece))
            return
        self.add_with(["write", handle, offset, size, 0], 4, data)

    def add_with(
        self,
        command: list[Any],
        field: int,
        data: memoryview | bytes,
        header_bytes: int = 32,
        pending: dict[int, Pending[Any]] | None = None,
    ) -> None:
        """Queue a command with its payload; `data` must not change until the batch is sent.

        `field` of the command, the payload's position in the chunk, is set here. `data` has at most
        1 MiB.
        """
        size = len(data)
        if not size:
            self.add(command, header_bytes, pending)
            return
        position = wire.aligned(self._chunk_bytes)
        if position + size > _CHUNK_BYTES:
            self.flush()
            position = 0
        self.add(command, header_bytes, pending)
        if not self._pieces:
            position = 0
        elif position > self._chunk_bytes:
            self._pieces.append(_PADDING[position - self._chunk_bytes])
        command[field] = position
        self._pieces.append(data)
        self._chunk_bytes = position + size

    def flush(self) -> Ticket | None:
        """Send what is queued; None if there was nothing."""
        if not self._commands:
            return None
        pieces = self._pieces
        chunk = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        commands, pending = self._commands, self._pending
        self._start_over()
        try:
            ticket = self._link.send(commands, chunk, pending)
        except TapmlError as error:
            for result in pending.values():
                result.fail(error)
            raise
        if len(self.sent) > _REMEMBERED:
            self.sent = [earlier for earlier in self.sent if not earlier.done]
        self.sent.append(ticket)
        return ticket

    def begin(self) -> None:
        """A batch begins here: commands queued before are not part of it."""
        self._begun = len(self._commands), len(self._pieces), self._chunk_bytes

    def give_up(self) -> None:
        """Forget the work queued since :meth:`begin`, but not handles: they may be used later."""
        commands, pieces, self._chunk_bytes = self._begun
        for index in [index for index in self._pending if _command_of(index) >= commands]:
            pending = self._pending.pop(index)
            pending.fail(InputError("its batch was given up before it was sent"))
        self._commands[commands:] = [
            command for command in self._commands[commands:] if command[0] in _HANDLES
        ]
        del self._pieces[pieces:]

    def settle(self) -> None:
        """Send what is queued and wait for every answer; raises the stream's first error."""
        self.flush()
        sent, self.sent = self.sent, []
        for ticket in sent:
            self._link.wait(ticket)
        for ticket in sent:
            if ticket.failure is not None:
                raise ticket.failure

    def forget_answered(self) -> bool:
        """Drop answered batches; True when none is under way. Errors come with the next wait."""
        if self._link.drain():
            self.sent.clear()
        return not self.sent

    def _start_over(self) -> None:
        self._commands, self._pieces, self._pending = [], [], {}
        self._chunk_bytes = self._header_bytes = 0
        self._begun = 0, 0, 0


def _command_of(index: int | tuple[int, int]) -> int:
    return index if isinstance(index, int) else index[0]


def _piece_bytes(size: int) -> int:
    """The piece size of a payload: one piece is sent while the device takes another."""
    if size < 2 * LARGE_BYTES:
        return size
    half = -(-size // 2)
    return min(PIECE_BYTES, -(-half // _PIECE_ALIGNMENT) * _PIECE_ALIGNMENT)


def contiguous_bytes(data: Any) -> memoryview:
    """The bytes behind a contiguous buffer; raises InputError if it is not contiguous."""
    try:
        view = memoryview(data)
    except TypeError:
        raise InputError(
            f"expected bytes or a contiguous array, got {type(data).__name__}"
        ) from None
    if not view.c_contiguous:
        raise InputError("expected contiguous data; numpy.ascontiguousarray makes it so")
    return view.cast("B") if view.nbytes else memoryview(b"")
