"""What each command of the protocol does on a driver."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from tapml_rpc import wire
from tapml_rpc.attached_blobs import AttachedBlobs
from tapml_rpc.bounds import Bounds
from tapml_rpc.calls import Calls
from tapml_rpc.libraries import LibraryStore
from tapml_rpc.piece_memory import PieceMemory, Pieces
from tapml_rpc.programs import Programs
from tapml_rpc.running_batch import Index, RunningBatch
from tapml_rpc.server_session import Arriving, HeldBuffer, ServerSession
from tapml_targets.driver import Buffer, Driver, OpensMemory, ShowsMemory
from tapml_targets.errors import InputError, ProtocolError

if TYPE_CHECKING:
    import zmq

# Reads up to this many bytes travel with the batch's answer; longer ones are streamed in pieces.
INLINE_READ_BYTES: Final = 512 << 10
PIECE_BYTES: Final = 2 << 20
# A read from here on that is its batch's whole answer is made where the answer is sent from.
_DIRECT_BYTES: Final = 64 << 10
_PIECE_ALIGNMENT: Final = 64
_LEAST_PIECE_BYTES: Final = 256 << 10
MAX_PATTERN_BYTES: Final = 4096
# Of a blob, between two looks at the deadline.
PASTE_BYTES: Final = 16 << 20
# What is kept of the memory a session gives back.
MAX_SPARE_BYTES: Final = 64 << 20
MAX_SPARE_SIZES: Final = 256

Send: TypeAlias = Callable[
    [ServerSession, bytes, wire.Header, "list[memoryview | bytes]"],
    "zmq.MessageTracker | None",
]
Handler: TypeAlias = Callable[..., "Iterator[None] | None"]
# The session, the command, when it began, and its place: see RunningBatch.
Running: TypeAlias = tuple[ServerSession, object, float, int]
Note: TypeAlias = "Callable[[Running | None], None]"


class Commands:
    """The commands over one open driver. All methods run on the device thread.

    Parameters
    ----------
    driver
        The open device.
    libraries
        Libraries of all sessions.
    bounds
        What a session may hold.
    send
        Sends a header and a chunk's parts to a session's connection; a large chunk is sent from
        where it lies, and the tracker given back says when that is done.
    note
        Told whenever `running` changes.
    pieces
        Memory for streamed reads.
    blobs
        What the session has attached; None where there is no blob store.

    Attributes
    ----------
    handlers
        By name; each takes the batch, the command's index and the command's fields.
    running
        What the device is doing now, for whoever watches the deadline; None while idle.
    """

    def __init__(
        self,
        driver: Driver,
        libraries: LibraryStore,
        bounds: Bounds,
        send: Send,
        *,
        note: Note | None = None,
        pieces: Pieces | None = None,
        blobs: AttachedBlobs | None = None,
    ) -> None:
        self._running: Running | None = None
        self._note = note
        self._driver = driver
        self._shows = driver if isinstance(driver, ShowsMemory) else None
        self._opens = driver if isinstance(driver, OpensMemory) else None
        self._libraries = libraries
        self._bounds = bounds
        self._send = send
        self._blobs = AttachedBlobs() if blobs is None else blobs
        self._pieces = PieceMemory(PIECE_BYTES) if pieces is None else pieces
        calls = Calls(bounds)
        self.handlers: dict[str, Handler] = {
            "allocate": self._allocate,
            "free": self._free,
            "write": self._write,
            "read": self._read,
            "fill": self._fill,
            "copy": self._copy,
            "holds": self._holds,
            "upload": self._upload,
            "load": self._load,
            "unload": self._unload,
            "call": calls.call,
            "record": calls.record,
            "run": calls.run,
            "fence": self._fence,
            "reset": self._reset,
        }
        programs = Programs(self, bounds)
        self.handlers |= {
            "program": programs.record,
            "execute": programs.execute,
            "forget": programs.forget,
        }
        if blobs is not None:
            self.handlers["paste"] = self._paste

    @property
    def running(self) -> Running | None:
        """See the class."""
        return self._running

    @running.setter
    def running(self, value: Running | None) -> None:
        self._running = value
        if self._note is not None:
            self._note(value)

    def _span(
        self, batch: RunningBatch, handle: object, offset: object, nbytes: object
    ) -> tuple[HeldBuffer, int, int]:
        held = batch.session.buffer(handle)
        start = wire.integer(offset, "byte offset")
        length = wire.integer(nbytes, "byte count")
        if start + length > held.nbytes:
            raise InputError(
                f"bytes {start} to {start + length} lie outside buffer {handle} of "
                f"{held.nbytes} bytes"
            )
        return held, start, length

    def _allocate(self, batch: RunningBatch, index: Index, handle: object, nbytes: object) -> None:
        session = batch.session
        number = session.new_handle(handle, self._bounds.handles)
        size = wire.integer(nbytes, "byte count")
        if session.nbytes + size > self._bounds.session_bytes:
            raise InputError(
                f"allocating {size} bytes would bring this session to {session.nbytes + size}; "
                f"its bound is {self._bounds.session_bytes}"
            )
        spare = session.spare.get(size)
        if spare:
            buffer = spare.popleft()
            session.spare_bytes -= size
        else:
            buffer = self._new_buffer(session, size)
        session.buffers[number] = HeldBuffer(buffer, size)
        session.nbytes += size

    def _new_buffer(self, session: ServerSession, size: int) -> Buffer:
        try:
            return self._driver.allocate(size)
        except Exception:
            if not session.spare_bytes:
                raise
        # The memory kept for later may be what is missing.
        self.free_spare(session)
        return self._driver.allocate(size)

    def free_spare(self, session: ServerSession) -> None:
        """Free the memory a session has given back and the server has kept."""
        spare, session.spare, session.spare_bytes = session.spare, {}, 0
        for buffers in spare.values():
            for buffer in buffers:
                self._driver.free(buffer)

    def _free(self, batch: RunningBatch, index: Index, handle: object) -> None:
        session = batch.session
        number = wire.integer(handle, "handle")
        held = session.buffers.pop(number, None)
        if held is None:
            session.recordings.pop(number, None)
            return
        size = held.nbytes
        session.nbytes -= size
        session.frees += 1
        if size > MAX_SPARE_BYTES:
            self._driver.free(held.buffer)
            return
        if session.spare_bytes + size > MAX_SPARE_BYTES or len(session.spare) >= MAX_SPARE_SIZES:
            self.free_spare(session)
        # First in, first out: the next test's first tensor gets this test's first tensor's memory.
        session.spare.setdefault(size, deque()).append(held.buffer)
        session.spare_bytes += size

    def _write(
        self,
        batch: RunningBatch,
        index: Index,
        handle: object,
        offset: object,
        nbytes: object,
        chunk_offset: object,
    ) -> None:
        held, start, length = self._span(batch, handle, offset, nbytes)
        if batch.message.arriving is not None and self._opens is not None:
            with self._opens.open_memory(held.buffer, start, length) as memory:
                self._receive(batch, batch.message.arriving, memory)
            return
        data = batch.window(chunk_offset, length)
        if length:
            self._driver.write(held.buffer, start, data)

    def _receive(self, batch: RunningBatch, arriving: Arriving, memory: memoryview) -> None:
        """Fill memory of the device with what is arriving: the deadline does not count that."""
        self.running = None
        arriving.receive_into(memory)
        self.running = (batch.session, batch.command, time.monotonic(), batch.place)

    def _paste(
        self,
        batch: RunningBatch,
        index: Index,
        handle: object,
        offset: object,
        digest: object,
        blob_offset: object,
        nbytes: object,
    ) -> None:
        held, start, length = self._span(batch, handle, offset, nbytes)
        first = wire.integer(blob_offset, "blob offset")
        data = self._blobs.window(wire.text(digest, "hash", 64), first, length)
        for position in range(0, length, PASTE_BYTES):
            self.running = (batch.session, batch.command, time.monotonic(), batch.place)
            piece = data[position : position + PASTE_BYTES]
            self._driver.write(held.buffer, start + position, piece)

    def _fill(
        self,
        batch: RunningBatch,
        index: Index,
        handle: object,
        offset: object,
        nbytes: object,
        pattern: object,
    ) -> None:
        held, start, length = self._span(batch, handle, offset, nbytes)
        repeated = wire.octets(pattern, "pattern", MAX_PATTERN_BYTES)
        if not repeated:
            raise ProtocolError("a fill pattern has at least one byte")
        if length:
            self._driver.fill(held.buffer, start, length, repeated)

    def _copy(
        self,
        batch: RunningBatch,
        index: Index,
        source: object,
        source_offset: object,
        target: object,
        target_offset: object,
        nbytes: object,
    ) -> None:
        origin, start, length = self._span(batch, source, source_offset, nbytes)
        destination, at, _ = self._span(batch, target, target_offset, nbytes)
        if origin is destination and start < at + length and at < start + length:
            raise InputError("a copy within one buffer must not overlap itself")
        if length:
            self._driver.copy(origin.buffer, start, destination.buffer, at, length)

    def _read(
        self, batch: RunningBatch, index: Index, handle: object, offset: object, nbytes: object
    ) -> Iterator[None] | None:
        held, start, length = self._span(batch, handle, offset, nbytes)
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
            # In two halves: one is on its way while the device gives the other.
            half = -(-length // (2 * _PIECE_ALIGNMENT)) * _PIECE_ALIGNMENT
            step = max(half, _LEAST_PIECE_BYTES)
        for offset in range(0, length, step):
            size = min(step, length - offset)
            while session.download_credit < size:
                self.running = None
                yield
            self.running = (session, batch.command, time.monotonic(), batch.place)
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
        """The bytes where they lie, if they can be sent from there before anything changes them."""
        if self._shows is None or not self._pieces.direct():
            return None
        return self._shows.show(held.buffer, start, length)

    def _read_into(self, held: HeldBuffer, start: int, data: memoryview) -> None:
        try:
            self._driver.read_into(held.buffer, start, data)
        except BaseException:
            self._pieces.give_back()
            raise

    def _holds(self, batch: RunningBatch, index: Index, digests: object) -> None:
        batch.give(
            index,
            [
                self._libraries.holds(wire.text(digest, "hash", 64))
                for digest in wire.array(digests, "hashes", self._bounds.handles)
            ],
        )

    def _upload(
        self,
        batch: RunningBatch,
        index: Index,
        digest: object,
        total: object,
        offset: object,
        nbytes: object,
        chunk_offset: object,
    ) -> None:
        self._libraries.receive(
            batch.session.uploads,
            wire.text(digest, "hash", 64),
            wire.integer(total, "Library size"),
            wire.integer(offset, "offset"),
            batch.window(chunk_offset, nbytes),
        )

    def _load(self, batch: RunningBatch, index: Index, handle: object, digest: object) -> None:
        session = batch.session
        number = session.new_handle(handle, self._bounds.handles)
        name = wire.text(digest, "hash", 64)
        attached = self._blobs.view(name) if name in self._blobs else None
        built = self._libraries.load(self._driver, name, attached)
        session.libraries[number] = built
        library = built.loaded.library
        batch.give(index, [list(library.operators), list(library.entries)])

    def _unload(self, batch: RunningBatch, index: Index, handle: object) -> None:
        built = batch.session.libraries.pop(wire.integer(handle, "handle"), None)
        if built is not None:
            self._libraries.release(built)

    def _fence(self, batch: RunningBatch, index: Index) -> None:
        self._driver.finish()
        batch.give(index, True)

    def _reset(self, batch: RunningBatch, index: Index) -> None:
        # Whatever was still running ends here; its error, if any, belongs to the past.
        with contextlib.suppress(Exception):
            self._driver.finish()
        batch.session.failures.pop(batch.message.stream, None)
