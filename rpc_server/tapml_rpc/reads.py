"""The command ``read``: short results go with the batch's answer, long ones in pieces before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tapml_rpc import wire
from tapml_rpc.piece_memory import Pieces
from tapml_rpc.running_batch import Index, RunningBatch
from tapml_rpc.server_session import HeldBuffer
from tapml_targets.driver import Driver, HostReadable

if TYPE_CHECKING:
    from tapml_rpc.commands import Commands, Send

# Reads up to this many bytes travel with the batch's answer; longer ones are streamed in pieces.
INLINE_READ_BYTES: Final = 512 << 10
PIECE_BYTES: Final = 2 << 20
# A read of at least so many bytes that is its batch's only result is made in the memory it is sent
# from.
_DIRECT_BYTES: Final = 64 << 10
_PIECE_ALIGNMENT: Final = 64
_LEAST_PIECE_BYTES: Final = 256 << 10


class Reads:
    """Reads from an open driver. All methods run on the device thread.

    Arguments are those of :class:`tapml_rpc.commands.Commands`.
    """

    def __init__(self, commands: Commands, driver: Driver, send: Send, pieces: Pieces) -> None:
        self._commands = commands
        self._driver = driver
        self._shows = driver if isinstance(driver, HostReadable) else None
        self._send = send
        self._pieces = pieces

    def read(
        self, batch: RunningBatch, index: Index, handle: object, offset: object, nbytes: object
    ) -> Iterator[None] | None:
        """Send the bytes of a buffer; yields while they wait for the client's credit."""
        held, start, length = batch.span(handle, offset, nbytes)
        position = wire.aligned(batch.inline_bytes)
        if position + length > INLINE_READ_BYTES:
            return self._stream(batch, index, held, start, length)
        if position > batch.inline_bytes:
            batch.inline.append(bytes(position - batch.inline_bytes))
        data: memoryview | bytes = b""
        if not position and length >= _DIRECT_BYTES and index == len(batch.message.commands) - 1:
            shown = self._shown(held, start, length)
            if shown is None:
                shown = self._pieces.answer(length)
                self._read_into(held, start, shown)
            data = shown
        elif length:
            data = self._driver.read(held.buffer, start, length)
        batch.inline.append(data)
        batch.inline_bytes = position + length
        batch.give(index, [position, length])
        return None

    def _stream(
        self, batch: RunningBatch, index: Index, held: HeldBuffer, start: int, length: int
    ) -> Iterator[None]:
        session, message = batch.session, batch.message
        step = PIECE_BYTES
        shown = self._shown(held, start, length)
        if length <= PIECE_BYTES and (shown is None or session.download_credit < length):
            # In two halves: one is sent while the device produces the other.
            half = -(-length // (2 * _PIECE_ALIGNMENT)) * _PIECE_ALIGNMENT
            step = max(half, _LEAST_PIECE_BYTES)
        for offset in range(0, length, step):
            size = min(step, length - offset)
            while session.download_credit < size:
                self._commands.clock.rest()
                yield
            self._commands.clock.begin(batch)
            shown = self._shown(held, start + offset, size)
            if shown is None:
                piece = self._pieces.take()
                data = piece[:size]
                self._read_into(held, start + offset, data)
            session.download_credit -= size
            header = {
                "type": "data",
                "sequence": message.sequence,
                "index": index,
                "offset": offset,
            }
            if shown is not None:
                self._send(session, message.identity, header, [shown])
            else:
                self._pieces.lend(piece, self._send(session, message.identity, header, [data]))
        batch.give(index, length)

    def _shown(self, held: HeldBuffer, start: int, length: int) -> memoryview | None:
        """The bytes in device memory, if they can be sent before anything changes them."""
        if self._shows is None or not self._pieces.direct():
            return None
        return self._shows.show(held.buffer, start, length)

    def _read_into(self, held: HeldBuffer, start: int, data: memoryview) -> None:
        try:
            self._driver.read_into(held.buffer, start, data)
        except BaseException:
            self._pieces.give_back()
            raise
