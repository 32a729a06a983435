"""How each command of the protocol runs on a driver."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from tapml_rpc import wire
from tapml_rpc.device.libraries import AttachedBlobs, BuiltLibrary, LibraryStore
from tapml_rpc.device.programs import Programs
from tapml_rpc.device.session_state import (
    BoundCall,
    CommandClock,
    HeldBuffer,
    Index,
    RunningBatch,
    ServerSession,
)
from tapml_rpc.welcome import Bounds
from tapml_targets.driver import Buffer, Driver, HostReadable, TensorUse
from tapml_targets.errors import InputError, ProtocolError
from tapml_targets.prepared_call import CallReport

# What is kept of the memory that a session frees.
MAX_SPARE_BYTES: Final = 64 << 20
MAX_SPARE_SIZES: Final = 256


Fields: TypeAlias = list[Any]
"""The fields of a command behind its name: as many as it has, and not checked."""
Handler: TypeAlias = Callable[[RunningBatch, Any, Fields], "Iterator[None] | None"]
"""Runs a command of a batch, at its index there."""


class Allocations:
    """The commands over a session's memory. All methods run on the device thread."""

    def __init__(self, driver: Driver, bounds: Bounds) -> None:
        self._driver = driver
        self._bounds = bounds

    def allocate(self, batch: RunningBatch, index: Index, fields: Fields) -> None:
        """Make a buffer, reusing freed memory of its size if there is some."""
        handle, nbytes = fields
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

    def free(self, batch: RunningBatch, index: Index, fields: Fields) -> None:
        """Free a buffer; a missing one is no error."""
        (handle,) = fields
        session = batch.session
        held = session.buffers.pop(wire.integer(handle, "handle"), None)
        if held is None:
            return
        size = held.nbytes
        session.nbytes -= size
        session.releases += 1
        if size > MAX_SPARE_BYTES:
            self._driver.free(held.buffer)
            return
        if session.spare_bytes + size > MAX_SPARE_BYTES or len(session.spare) >= MAX_SPARE_SIZES:
            self.free_spare(session)
        # First in, first out: the next test's first tensor gets this test's first tensor's memory.
        session.spare.setdefault(size, deque()).append(held.buffer)
        session.spare_bytes += size

    def free_spare(self, session: ServerSession) -> None:
        """Free the memory kept of a session's freed buffers."""
        spare, session.spare, session.spare_bytes = session.spare, {}, 0
        for buffers in spare.values():
            for buffer in buffers:
                self._driver.free(buffer)

    def _new_buffer(self, session: ServerSession, size: int) -> Buffer:
        try:
            return self._driver.allocate(size)
        except Exception:
            if not session.spare_bytes:
                raise
        # The memory kept for later may be what is missing.
        self.free_spare(session)
        return self._driver.allocate(size)


# Reads up to this many bytes travel with the batch's answer; longer ones are streamed in pieces.
INLINE_READ_BYTES: Final = 512 << 10
PIECE_BYTES: Final = 2 << 20
# A read of at least so many bytes that is its batch's only result is made in the memory it is sent
# from.
_DIRECT_BYTES: Final = 64 << 10
_PIECE_ALIGNMENT: Final = 64
_LEAST_PIECE_BYTES: Final = 256 << 10


class PieceMemory:
    """Memory of `nbytes` for the pieces of streamed reads, reused once a piece has been sent.

    Fresh memory for every piece costs more in page faults than the copy into it.
    """

    def __init__(self, nbytes: int) -> None:
        self._memory = memoryview(bytearray(nbytes))

    def take(self) -> memoryview:
        """Memory that nobody reads any more."""
        return self._memory

    def answer(self, nbytes: int) -> memoryview:
        """Memory for bytes that the batch's answer carries; nothing else is taken until then."""
        return memoryview(bytearray(nbytes))

    def direct(self) -> bool:
        """Whether the bytes leave device memory before anything else runs; an answer keeps them."""
        return False

    def give_back(self) -> None:
        """Return the memory taken last: its read failed, and it will not be sent."""


class Reads:
    """Reads from an open driver, on the device thread; arguments are those of `Commands`."""

    def __init__(self, commands: Commands, driver: Driver, send: Send, pieces: PieceMemory) -> None:
        self._commands = commands
        self._driver = driver
        self._shows = driver if isinstance(driver, HostReadable) else None
        self._send = send
        self._pieces = pieces

    def read(self, batch: RunningBatch, index: Index, fields: Fields) -> Iterator[None] | None:
        """Send the bytes of a buffer; yields while they wait for the client's credit."""
        handle, offset, nbytes = fields
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
                data = self._pieces.take()[:size]
                self._read_into(held, start + offset, data)
                shown = data
            session.download_credit -= size
            header = {
                "type": "data",
                "sequence": message.sequence,
                "index": index,
                "offset": offset,
            }
            self._send(header, [shown])
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


MAX_RANK: Final = 32
# Each keeps the launches of its call, which may be thousands.
MAX_BOUND: Final = 64


class Calls:
    """The command ``call``, also as programs have it. All methods run on the device thread."""

    def call(self, batch: RunningBatch, index: Index, fields: Fields) -> None:
        """Run an operator or an entry."""
        library, name, tensors, symbols, options = fields
        built = _built(batch, library)
        if type(options) is not dict:
            raise ProtocolError("the options of a call are a map")
        poison = options.get("workspace_poison")
        timed = options.get("timed") is True
        report = built.loaded.call(
            wire.text(name, "operator name"),
            _tensors(batch, tensors),
            _symbols(symbols),
            workspace_poison=(
                None if poison is None else wire.octets(poison, "workspace poison", 4096)
            ),
            timed=timed,
        )
        if timed or poison is not None:
            _give(batch, index, report, timed=timed)

    def run(self, batch: RunningBatch, key: tuple[str, int], command: list[Any]) -> None:
        """Run a call of a program, `key`, which is checked and bound to its memory once.

        It is bound again where its Library or a buffer of it is another since.
        """
        session = batch.session
        bound = session.bound.get(key)
        if bound is None or not _is_whole(session, bound):
            bound = self._bind(batch, key, command)
        bound.built.loaded.run(bound.call)

    def _bind(self, batch: RunningBatch, key: tuple[str, int], command: list[Any]) -> BoundCall:
        session = batch.session
        # One that cannot be bound again must not be found by the next run.
        session.bound.pop(key, None)
        _, library, name, tensors, symbols, _ = command
        built = _built(batch, library)
        call = built.loaded.record(
            wire.text(name, "operator name"), _tensors(batch, tensors), _symbols(symbols)
        )
        if len(session.bound) >= MAX_BOUND:
            del session.bound[next(iter(session.bound))]
        handles = {tensor[0] for tensor in tensors}
        bound = session.bound[key] = BoundCall(
            library=library,
            built=built,
            call=call,
            buffers=tuple((each, session.buffers[each]) for each in handles),
            checked=session.releases,
        )
        return bound


def _built(batch: RunningBatch, library: object) -> BuiltLibrary:
    built = batch.session.libraries.get(wire.integer(library, "handle"))
    if built is None:
        raise InputError(f"no Library has the handle {library}: it was never loaded or unloaded")
    return built


def _is_whole(session: ServerSession, bound: BoundCall) -> bool:
    """Whether a bound call's Library and buffers are the session's still."""
    if bound.checked == session.releases:
        return True
    whole = session.libraries.get(bound.library) is bound.built and all(
        session.buffers.get(number) is held for number, held in bound.buffers
    )
    if whole:
        bound.checked = session.releases
    return whole


def _give(batch: RunningBatch, index: Index, report: CallReport, *, timed: bool) -> None:
    result: list[Any] = [None, list(report.damaged_guards)]
    batch.give(index, result)
    if timed:
        batch.timed.append((result, report))


def _symbols(symbols: object) -> dict[str, int]:
    if type(symbols) is not dict:
        raise ProtocolError("the symbols of a call are a map")
    for symbol, value in symbols.items():
        if type(symbol) is not str or type(value) is not int:
            raise ProtocolError(f"symbol {str(symbol)[:60]!r} must have an integer value")
    return symbols


def _tensors(batch: RunningBatch, tensors: object) -> list[TensorUse]:
    buffers = batch.session.buffers
    uses = []
    for tensor in wire.array(tensors, "tensors"):
        try:
            handle, byte_offset, shape, dtype = tensor
            buffer = buffers[handle].buffer
            use = TensorUse(buffer, byte_offset, tuple(shape), dtype)
        except (TypeError, ValueError, LookupError):
            _explain_tensor(batch, tensor)
            raise
        if type(byte_offset) is not int or byte_offset < 0 or type(dtype) is not str:
            _explain_tensor(batch, tensor)
        for extent in shape:
            if type(extent) is not int or extent < 0:
                _explain_tensor(batch, tensor)
        uses.append(use)
    return uses


def _explain_tensor(batch: RunningBatch, tensor: object) -> None:
    fields = wire.array(tensor, "tensor", 4)
    if len(fields) != 4:
        raise ProtocolError("a tensor is [handle, byte offset, shape, dtype]")
    handle, byte_offset, shape, dtype = fields
    for extent in wire.array(shape, "shape", MAX_RANK):
        wire.integer(extent, "extent")
    wire.integer(byte_offset, "byte offset")
    wire.text(dtype, "dtype", 40)
    batch.session.buffer(handle)


MAX_PATTERN_BYTES: Final = 4096
# Bytes of a blob between two checks of the deadline.
PASTE_BYTES: Final = 16 << 20

Send: TypeAlias = Callable[[wire.Header, "list[memoryview | bytes]"], None]


class Commands:
    """The commands over one open driver. All methods run on the device thread.

    `send` sends a header and a chunk's parts; it is done with their memory when it returns. `clock`
    is notified which command runs. `handlers` are by name, each with the number of its command's
    fields.
    """

    def __init__(
        self,
        driver: Driver,
        libraries: LibraryStore,
        blobs: AttachedBlobs,
        bounds: Bounds,
        send: Send,
        *,
        clock: CommandClock,
        pieces: PieceMemory | None = None,
    ) -> None:
        self.clock = clock
        self._driver = driver
        self._libraries = libraries
        self._bounds = bounds
        self._blobs = blobs
        self.allocations = Allocations(driver, bounds)
        memory = PieceMemory(PIECE_BYTES) if pieces is None else pieces
        reads = Reads(self, driver, send, memory)
        self.calls = Calls()
        programs = Programs(self, bounds)
        self.handlers: dict[str, tuple[int, Handler]] = {
            "allocate": (2, self.allocations.allocate),
            "free": (1, self.allocations.free),
            "write": (4, self._write),
            "read": (3, reads.read),
            "fill": (4, self._fill),
            "copy": (5, self._copy),
            "paste": (5, self._paste),
            "load": (2, self._load),
            "unload": (1, self._unload),
            "call": (5, self.calls.call),
            "fence": (0, self._fence),
            "reset": (0, self._reset),
            "program": (2, programs.record),
            "execute": (3, programs.execute),
            "forget": (1, programs.forget),
        }

    def _write(self, batch: RunningBatch, index: Index, fields: Fields) -> None:
        handle, offset, nbytes, chunk_offset = fields
        held, start, length = batch.span(handle, offset, nbytes)
        data = batch.window(chunk_offset, length)
        if length:
            self._driver.write(held.buffer, start, data)

    def _paste(self, batch: RunningBatch, index: Index, fields: Fields) -> None:
        handle, offset, digest, blob_offset, nbytes = fields
        held, start, length = batch.span(handle, offset, nbytes)
        first = wire.integer(blob_offset, "blob offset")
        data = self._blobs.window(wire.text(digest, "hash", 64), first, length)
        for position in range(0, length, PASTE_BYTES):
            self.clock.begin(batch)
            piece = data[position : position + PASTE_BYTES]
            self._driver.write(held.buffer, start + position, piece)

    def _fill(self, batch: RunningBatch, index: Index, fields: Fields) -> None:
        handle, offset, nbytes, pattern = fields
        held, start, length = batch.span(handle, offset, nbytes)
        repeated = wire.octets(pattern, "pattern", MAX_PATTERN_BYTES)
        if not repeated:
            raise ProtocolError("a fill pattern has at least one byte")
        if length:
            self._driver.fill(held.buffer, start, length, repeated)

    def _copy(self, batch: RunningBatch, index: Index, fields: Fields) -> None:
        source, source_offset, target, target_offset, nbytes = fields
        origin, start, length = batch.span(source, source_offset, nbytes)
        destination, at, _ = batch.span(target, target_offset, nbytes)
        if origin is destination and start < at + length and at < start + length:
            raise InputError("a copy within one buffer must not overlap itself")
        if length:
            self._driver.copy(origin.buffer, start, destination.buffer, at, length)

    def _load(self, batch: RunningBatch, index: Index, fields: Fields) -> None:
        handle, digest = fields
        session = batch.session
        number = session.new_handle(handle, self._bounds.handles)
        built = self._libraries.load(wire.text(digest, "hash", 64), self._blobs)
        session.libraries[number] = built
        library = built.loaded.library
        batch.give(index, [list(library.operators), list(library.entries)])

    def _unload(self, batch: RunningBatch, index: Index, fields: Fields) -> None:
        (handle,) = fields
        built = batch.session.libraries.pop(wire.integer(handle, "handle"), None)
        if built is not None:
            batch.session.releases += 1
            self._libraries.release(built)

    def _fence(self, batch: RunningBatch, index: Index, fields: Fields) -> None:
        self._driver.finish()
        batch.give(index, True)

    def _reset(self, batch: RunningBatch, index: Index, fields: Fields) -> None:
        # Whatever was still running ends here; its error, if any, belongs to the past.
        with contextlib.suppress(Exception):
            self._driver.finish()
        batch.session.failure = None
