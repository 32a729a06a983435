"""A session: handles on one device, and the commands that use them.

Commands stream: they are queued, sent together, and run in order without an answer in between. An
error poisons the session, so that later commands are skipped; the next read or fence
raises it, and :meth:`Session.reset` clears it.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final
from weakref import WeakValueDictionary

from tapml_rpc import wire
from tapml_rpc.command_queue import LARGE_BYTES, CommandQueue, contiguous_bytes
from tapml_rpc.device.program_body import check_program
from tapml_rpc.recordings import RemoteProgram
from tapml_rpc.remote import RemoteBuffer, RemoteLibrary, RemoteTensor
from tapml_rpc.transport import Pending, PendingCall, PendingRead, Transport
from tapml_rpc.uploads import SMALL_BYTES, BlobWrite, load_library, write_large
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import InputError, TapmlError
from tapml_targets.library import Library
from tapml_targets.library_format import library_hash, pack

# For every call without measurements: a decode step has hundreds.
_NOTHING_TO_REPORT: Final = PendingCall()
_NOTHING_TO_REPORT.resolve([None, []], memoryview(b""))


class Batch:
    """Commands in one message; reads and reports come with its answer.

    Made by :meth:`Session.batch`. Methods without a result are the session's own.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.allocate = session.allocate
        self.free = session.free
        self.write = session.write
        self.fill = session.fill
        self.copy = session.copy
        self.program = session.program

    def read(
        self, buffer: RemoteBuffer, nbytes: int | None = None, byte_offset: int = 0
    ) -> PendingRead:
        """Copy bytes from the device; the result is there when the batch has ended."""
        return self._open()._add_read(buffer, nbytes, byte_offset)

    def call(
        self,
        library: RemoteLibrary,
        name: str,
        tensors: Sequence[RemoteTensor],
        symbols: Mapping[str, int] | None = None,
        *,
        timed: bool = False,
        workspace_poison: bytes | None = None,
    ) -> PendingCall:
        """Run an operator or an entry, as :meth:`Session.call` does, and report on it.

        `timed` measures the time in kernels. `workspace_poison` are bytes to fill every workspace
        with first; writes around workspaces are then noticed.
        """
        options: dict[str, Any] = {}
        if timed:
            options["timed"] = True
        if workspace_poison is not None:
            options["workspace_poison"] = bytes(workspace_poison)
        pending = PendingCall() if options else None
        self._open()._add_call(library, name, tensors, symbols, options, pending)
        return pending or _NOTHING_TO_REPORT

    def execute(
        self, program: RemoteProgram, *payloads: Any, arguments: Sequence[int] = ()
    ) -> list[PendingRead]:
        """Run a program; the results of its reads, in their order.

        Parameters
        ----------
        payloads
            The bytes of its writes, in their order: any contiguous buffers. They may be changed as
            soon as the batch has ended.
        arguments
            Its integers, in their order.
        """
        return self._open()._add_execute(program, payloads, arguments)

    def _open(self) -> Session:
        if self._session._batch is not self:
            raise InputError("this batch has ended; open another one")
        return self._session


_LOAD: Final = ("sessions", "device_bytes")


class Session:
    """Handles on one device, and the commands that use them.

    Made by :func:`tapml_rpc.client.connect` and :func:`tapml_rpc.local.open_local`. It may be used
    from several threads: each method, and each complete ``with session.batch()`` block, runs
    separately.

    Attributes
    ----------
    device
        The server's description of its device.
    epoch
        Random bytes that identify this lifetime of the server.
    address
        Where the server listens.
    held_bytes, peak_bytes
        Device memory that buffers of this session take now, and took at most at a time.
    """

    def __init__(self, link: Transport, on_close: Callable[[], None] | None = None) -> None:
        self.device: DeviceDescription = link.device
        self.epoch = link.epoch
        self.address = link.address
        self.held_bytes = 0
        self.peak_bytes = 0
        self._link = link
        self._on_close = on_close
        self._queue = CommandQueue(link)
        self._handles = itertools.count(1)
        self._dropped: deque[tuple[int | str, int]] = deque()
        self._libraries: dict[str, RemoteLibrary] = {}
        self._lock = threading.RLock()
        self._batch: Batch | None = None
        self._programs: WeakValueDictionary[str, RemoteProgram] = WeakValueDictionary()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._link.closed else ""
        return f"Session({self.device.name!r} at {self.address}{state})"

    def load(self) -> dict[str, int]:
        """The server's last totals (``sessions``, ``device_bytes``); at first empty."""
        pong = getattr(self._link, "pong", {})
        return {name: value for name in _LOAD if type(value := pong.get(name)) is int}

    def allocate(self, nbytes: int) -> RemoteBuffer:
        """Reserve `nbytes` bytes on the device, with undefined content."""
        if not isinstance(nbytes, int) or nbytes < 0:
            raise InputError(f"nbytes must be a whole number from 0, got {nbytes!r}")
        with self._lock:
            buffer = RemoteBuffer(self, next(self._handles), nbytes, self._dropped.append)
            self._add(["allocate", buffer.handle, nbytes])
            self.held_bytes += nbytes
            self.peak_bytes = max(self.peak_bytes, self.held_bytes)
            return buffer

    def free(self, buffer: RemoteBuffer) -> None:
        """Free a buffer after the work that uses it. Freeing twice does nothing."""
        with self._lock:
            if not buffer.freed and buffer.session is self:
                buffer.freed = True
                self.held_bytes -= buffer.nbytes
                if not self._link.closed:
                    self._add(["free", buffer.handle])

    def write(self, buffer: RemoteBuffer, data: Any, byte_offset: int = 0) -> None:
        """Copy bytes to the device.

        Parameters
        ----------
        data
            Any contiguous buffer: bytes, memoryview, numpy array. It may be changed as soon as this
            returns, inside a batch as soon as the batch has ended.

        Raises
        ------
        InputError
            If the bytes do not fit the buffer.
        """
        view = contiguous_bytes(data)
        with self._lock:
            buffer.check_window(self, byte_offset, len(view))
            if not view:
                return
            if self._batch is not None or len(view) < LARGE_BYTES:
                self._collect()
                kept = view if self._batch is not None else bytes(view)
                self._queue.add_write(buffer.handle, byte_offset, kept)
            else:
                self._queue.add_write(buffer.handle, byte_offset, view)
                sent, self._queue.sent = self._queue.sent, []
                for ticket in sent:
                    self._link.wait(ticket)

    def read(self, buffer: RemoteBuffer, nbytes: int | None = None, byte_offset: int = 0) -> Any:
        """Copy bytes from the device, after everything sent before.

        Returns
        -------
        memoryview
            The bytes. Inside a batch a :class:`PendingRead`, whose ``result()`` gives them once the
            batch has ended.

        Raises
        ------
        InputError
            If the window lies outside the buffer.
        TapmlError
            The stream's first error.
        """
        with self._lock:
            pending = self._add_read(buffer, nbytes, byte_offset)
            if self._batch is not None:
                return pending
            self._queue.settle()
            return pending.result()

    def fill(
        self, buffer: RemoteBuffer, pattern: bytes, nbytes: int | None = None, byte_offset: int = 0
    ) -> None:
        """Repeat `pattern` over a window; `nbytes` need not be a multiple of its length.

        Raises
        ------
        InputError
            If the window lies outside the buffer, or the pattern is empty.
        """
        if not pattern:
            raise InputError("fill: the pattern must hold at least one byte")
        size = buffer.nbytes - byte_offset if nbytes is None else nbytes
        with self._lock:
            buffer.check_window(self, byte_offset, size)
            self._add(["fill", buffer.handle, byte_offset, size, bytes(pattern)], 40 + len(pattern))

    def copy(
        self,
        source: RemoteBuffer,
        target: RemoteBuffer,
        nbytes: int | None = None,
        source_offset: int = 0,
        target_offset: int = 0,
    ) -> None:
        """Copy between two buffers on the device."""
        size = source.nbytes - source_offset if nbytes is None else nbytes
        with self._lock:
            source.check_window(self, source_offset, size)
            target.check_window(self, target_offset, size)
            self._add(
                ["copy", source.handle, source_offset, target.handle, target_offset, size], 48
            )

    def write_blobs(self, writes: Iterable[BlobWrite]) -> int:
        """Write bytes that the server may already hold, e.g. the weights of a model.

        The server is asked for all of them at once; what is missing is sent, and kept for later
        sessions of the same identity. This is :meth:`Session.write` if the server keeps no blobs or
        has no room, inside a batch, and for less than 64 KiB. Windows must not overlap: the writes
        may be reordered.

        Returns
        -------
        int
            Bytes that were sent.

        Raises
        ------
        InputError
            If bytes do not fit their buffer.
        ProtocolError
            If a given digest is not that of its bytes.
        """
        keeps = wire.BLOBS in self._link.features
        sent = 0
        with self._lock:
            large: list[tuple[BlobWrite, memoryview]] = []
            for write in writes:
                view = contiguous_bytes(write.data)
                write.buffer.check_window(self, write.byte_offset, len(view))
                if not keeps or self._batch is not None or len(view) < SMALL_BYTES:
                    self.write(write.buffer, view, write.byte_offset)
                    sent += len(view)
                else:
                    large.append((write, view))
            if large:
                sent += write_large(self, large)
        return sent

    def upload(self, library: Library | bytes) -> RemoteLibrary:
        """Build a Library on the device. One that the server holds is not sent again.

        Raises
        ------
        CompileError
            If a kernel does not build, with the driver's log. Other work goes on.
        InputError
            If the device refuses the Library, or the server has no room for it.
        """
        packed = library if isinstance(library, bytes) else pack(library)
        digest = library_hash(packed)
        with self._lock:
            if digest in self._libraries:
                return self._libraries[digest]
            handle = next(self._handles)
            self._queue.flush()
            operators, entries = load_library(self._link, handle, digest, packed)
            remote = RemoteLibrary(self, handle, digest, operators, entries)
            self._libraries[digest] = remote
            return remote

    def unload(self, library: RemoteLibrary) -> None:
        """Unload a Library; the server may keep it for the next session."""
        with self._lock:
            if self._libraries.pop(library.digest, None) is not None:
                self._add(["unload", library.handle])

    def call(
        self,
        library: RemoteLibrary,
        name: str,
        tensors: Sequence[RemoteTensor],
        symbols: Mapping[str, int] | None = None,
    ) -> None:
        """Run an operator or an entry; outputs are written in place.

        Parameters
        ----------
        tensors
            One per parameter, in order.
        symbols
            The integers no shape gives.

        Raises
        ------
        InputError
            If the Library has no such name, or a tensor belongs to another session.
        """
        with self._lock:
            self._add_call(library, name, tensors, symbols, {}, None)
            if self._batch is None and self._queue.forget_answered():
                self._queue.flush()

    @contextmanager
    def program(self, name: str) -> Iterator[RemoteProgram]:
        """Record a program: commands that are then run by one.

        Nothing runs while recording. A program of the same name is replaced.

        Raises
        ------
        InputError
            At the end, if it has too many commands.
        """
        program = RemoteProgram(self, name, self._dropped.append)
        yield program
        with self._lock:
            body = check_program(name, program.commands, self._link.bounds.program_commands)
            former = self._programs.get(name)
            if former is not None and former.known:
                former.known = False
                self._add(["forget", name], 16)
            program.recorded = program.known = True
            self._programs[name] = program
            self._add(["program", name, program.commands], body.nbytes)

    def execute(
        self, program: RemoteProgram, *payloads: Any, arguments: Sequence[int] = ()
    ) -> list[memoryview]:
        """Run a program; the results of its reads, in their order.

        Parameters
        ----------
        payloads
            The bytes of its writes, in their order: any contiguous buffers.
        arguments
            Its integers, in their order.

        Raises
        ------
        InputError
            If these do not match the program.
        TapmlError
            The stream's first error.
        """
        with self.batch() as batch:
            pending = batch.execute(program, *payloads, arguments=arguments)
        return [read.result() for read in pending]

    def fence(self) -> None:
        """Wait until the device has done everything.

        Raises
        ------
        TapmlError
            The first error since the last reset.
        """
        with self._lock:
            self._refuse_in_batch("fence")
            self._add(["fence"])
            self._queue.settle()

    def reset(self) -> None:
        """Clear the stream's error. What skipped commands would have written is undefined."""
        with self._lock:
            self._refuse_in_batch("reset")
            self._add(["reset"])
            ticket = self._queue.flush()
            sent, self._queue.sent = self._queue.sent, []
            for earlier in sent:
                self._link.wait(earlier)
            if ticket is not None and ticket.failure is not None:
                raise ticket.failure

    def cancel(self) -> None:
        """Ask to skip what was sent and has not started; callable from any thread.

        A running kernel is not stopped. The session is poisoned if something was skipped.
        """
        self._link.cancel()

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Send everything inside as one message with one answer, waited for at the end.

        Commands of the session and of the given batch may be mixed. Payloads of 256 KiB and more go
        in their own messages, and a batch over the server's bounds in several.

        Raises
        ------
        TapmlError
            At the end, the first error.
        """
        with self._lock:
            self._refuse_in_batch("batch")
            self._batch = batch = Batch(self)
            self._queue.begin()
            try:
                yield batch
            except BaseException as error:
                self._queue.give_up()
                if isinstance(error, Exception):
                    # Large payloads are sent from the caller's memory.
                    with suppress(TapmlError):
                        self._queue.settle()
                raise
            finally:
                self._batch = None
            self._queue.settle()

    def close(self) -> None:
        """End the session: the server frees what it held. Closing twice does nothing."""
        with self._lock:
            if self._link.closed:
                return
            try:
                self._link.close()
            finally:
                if self._on_close is not None:
                    self._on_close()

    def _add(
        self, command: list[Any], header_bytes: int = 32, pending: Pending[Any] | None = None
    ) -> None:
        self._collect()
        self._queue.add(command, header_bytes, pending)

    def _collect(self) -> None:
        while self._dropped:
            handle, nbytes = self._dropped.popleft()
            # A program has a name.
            self._queue.add(["forget" if isinstance(handle, str) else "free", handle], 16)
            self.held_bytes -= nbytes

    def _add_read(self, buffer: RemoteBuffer, nbytes: int | None, byte_offset: int) -> PendingRead:
        size = buffer.nbytes - byte_offset if nbytes is None else nbytes
        buffer.check_window(self, byte_offset, size)
        pending = PendingRead(size)
        self._add(["read", buffer.handle, byte_offset, size], 32, pending)
        return pending

    def _add_call(
        self,
        library: RemoteLibrary,
        name: str,
        tensors: Sequence[RemoteTensor],
        symbols: Mapping[str, int] | None,
        options: dict[str, Any],
        pending: Pending[Any] | None,
    ) -> None:
        fields = library.call_fields(self, name, tensors, symbols)
        header_bytes = 64 + len(name) + 64 * len(tensors) + 32 * len(symbols or ())
        header_bytes += len(options.get("workspace_poison", b""))
        self._add(["call", *fields, options], header_bytes, pending)

    def _add_execute(
        self, program: RemoteProgram, payloads: Sequence[Any], arguments: Sequence[int]
    ) -> list[PendingRead]:
        if program.session is not self or not program.recorded:
            raise InputError(f"{program} was recorded in another session, or not to its end")
        if self._programs.get(program.name) is not program:
            raise InputError(f"{program} has been replaced by another of its name")
        views = [contiguous_bytes(payload) for payload in payloads]
        chunk, results, given = program.payload(views), program.results(), list(arguments)
        self._collect()
        command = ["execute", program.name, given, 0]
        header_bytes = 32 + len(program.name) + 9 * len(given)
        self._queue.add_with(command, 3, chunk, header_bytes, dict(results))
        return list(results.values())

    def _refuse_in_batch(self, what: str) -> None:
        if self._batch is not None:
            raise InputError(
                f"session.{what} waits for an answer, so it cannot run inside a batch; "
                "`with session.batch() as batch: pending = batch.read(...)` reads"
            )
