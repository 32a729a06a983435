"""How each command of the protocol runs on a driver."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from tapml_rpc import wire
from tapml_rpc.allocations import Allocations
from tapml_rpc.attached_blobs import AttachedBlobs
from tapml_rpc.bounds import Bounds
from tapml_rpc.calls import Calls
from tapml_rpc.command_clock import CommandClock
from tapml_rpc.libraries import LibraryStore
from tapml_rpc.piece_memory import PieceMemory, Pieces
from tapml_rpc.programs import Programs
from tapml_rpc.reads import PIECE_BYTES, Reads
from tapml_rpc.running_batch import Index, RunningBatch
from tapml_rpc.server_session import ServerSession
from tapml_targets.driver import Driver
from tapml_targets.errors import InputError, ProtocolError

if TYPE_CHECKING:
    import zmq

MAX_PATTERN_BYTES: Final = 4096
# Bytes of a blob between two checks of the deadline.
PASTE_BYTES: Final = 16 << 20

Send: TypeAlias = Callable[
    [ServerSession, bytes, wire.Header, "list[memoryview | bytes]"],
    "zmq.MessageTracker | None",
]
Handler: TypeAlias = Callable[..., "Iterator[None] | None"]


class Commands:
    """The commands over one open driver. All methods run on the device thread.

    `libraries` are those of all sessions. `send` sends a header and a chunk's parts to a session's
    connection; a large chunk is sent in place, and the returned tracker says when that is done.
    `clock` is notified which command runs. `blobs` is None without a blob store. `handlers` by name
    take the batch, the command's index and the command's fields.
    """

    def __init__(
        self,
        driver: Driver,
        libraries: LibraryStore,
        bounds: Bounds,
        send: Send,
        *,
        clock: CommandClock,
        pieces: Pieces | None = None,
        blobs: AttachedBlobs | None = None,
    ) -> None:
        self.clock = clock
        self._driver = driver
        self._libraries = libraries
        self._bounds = bounds
        self._blobs = AttachedBlobs() if blobs is None else blobs
        self.allocations = Allocations(driver, bounds)
        memory = PieceMemory(PIECE_BYTES) if pieces is None else pieces
        reads = Reads(self, driver, send, memory)
        calls = Calls(bounds)
        self.handlers: dict[str, Handler] = {
            "allocate": self.allocations.allocate,
            "free": self.allocations.free,
            "write": self._write,
            "read": reads.read,
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

    def _write(
        self,
        batch: RunningBatch,
        index: Index,
        handle: object,
        offset: object,
        nbytes: object,
        chunk_offset: object,
    ) -> None:
        held, start, length = batch.span(handle, offset, nbytes)
        data = batch.window(chunk_offset, length)
        if length:
            self._driver.write(held.buffer, start, data)

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
        held, start, length = batch.span(handle, offset, nbytes)
        first = wire.integer(blob_offset, "blob offset")
        data = self._blobs.window(wire.text(digest, "hash", 64), first, length)
        for position in range(0, length, PASTE_BYTES):
            self.clock.begin(batch)
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
        held, start, length = batch.span(handle, offset, nbytes)
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
        origin, start, length = batch.span(source, source_offset, nbytes)
        destination, at, _ = batch.span(target, target_offset, nbytes)
        if origin is destination and start < at + length and at < start + length:
            raise InputError("a copy within one buffer must not overlap itself")
        if length:
            self._driver.copy(origin.buffer, start, destination.buffer, at, length)

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
            batch.session.releases += 1
            self._libraries.release(built)

    def _fence(self, batch: RunningBatch, index: Index) -> None:
        self._driver.finish()
        batch.give(index, True)

    def _reset(self, batch: RunningBatch, index: Index) -> None:
        # Whatever was still running ends here; its error, if any, belongs to the past.
        with contextlib.suppress(Exception):
            self._driver.finish()
        batch.session.failures.pop(batch.message.stream, None)
