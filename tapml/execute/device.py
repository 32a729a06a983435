"""The device side of a hybrid run: memory, resident weights, batched commands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeAlias

from tapml.execute.arrays import Array, flat_bytes
from tapml_rpc.remote import RemoteTensor
from tapml_rpc.uploads import BlobWrite
from tapml_targets.errors import (
    CompileError,
    DeviceLostError,
    InputError,
    ReferenceFailedError,
    ReferenceLostError,
    RemoteError,
    TapmlError,
)
from tapml_targets.library import Library

if TYPE_CHECKING:
    from tapml_rpc.client import Batch, Session
    from tapml_rpc.remote import RemoteBuffer, RemoteLibrary
    from tapml_rpc.transport import PendingRead

ReadLibrary: TypeAlias = Callable[[], Library]


class DeviceBuffer:
    """Device memory that returns to its pool when its last reference is dropped.

    State, snapshots and running programs share buffers by reference. Commands run in order, so
    freed memory can be reused immediately.
    """

    __slots__ = ("_memory", "_pool", "nbytes", "remote")

    def __init__(self, memory: DeviceMemory, remote: RemoteBuffer, nbytes: int) -> None:
        self._memory = memory
        self._pool = memory.pool
        self.remote = remote
        self.nbytes = nbytes

    def __del__(self) -> None:
        if self._pool == self._memory.pool:
            self._memory.give_back(self.remote, self.nbytes)


class DeviceMemory:
    """Buffers of one session, reused by size, and data that is uploaded once.

    Attributes
    ----------
    session
        The connection to the device.
    reference
        What the device is called, if it is the reference; else empty.
    bytes_written, bytes_read
        Tensor bytes moved so far, including weights, even those that a server already held.
    weight_bytes_written
        The part of them that was weights.
    pool
        Number of the current buffer pool; a failure starts a new one.
    limit_bytes
        Bound on all of the session's buffers, 0 for none. Above it, memory that no tensor uses is
        freed before more is allocated.
    """

    def __init__(self, session: Session, reference: str = "") -> None:
        self.session = session
        self.reference = reference
        self.bytes_written = 0
        self.bytes_read = 0
        self.weight_bytes_written = 0
        self.pool = 0
        self.limit_bytes = 0
        self._free: dict[int, list[RemoteBuffer]] = {}
        self._weights: dict[str, DeviceBuffer] = {}
        self._libraries: dict[str, RemoteLibrary] = {}
        self._waiting: dict[str, ReadLibrary] = {}

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Failures in this block are the reference's, if the device is the reference.

        Raises
        ------
        ReferenceFailedError
            In place of a RemoteError or a CompileError.
        """
        if not self.reference:
            yield
            return
        try:
            yield
        except (RemoteError, CompileError) as error:
            raise reference_failure(self.reference, error) from error

    def acquire(self, nbytes: int) -> DeviceBuffer:
        """Allocate `nbytes` bytes of undefined content."""
        free = self._free.get(nbytes)
        remote = free.pop() if free else self._allocate(max(1, nbytes))
        return DeviceBuffer(self, remote, nbytes)

    def _allocate(self, nbytes: int) -> RemoteBuffer:
        if self.limit_bytes and self.session.held_bytes + nbytes > self.limit_bytes:
            self.trim()
        return self.session.allocate(nbytes)

    def give_back(self, remote: RemoteBuffer, nbytes: int) -> None:
        """Return a buffer to the pool for its size."""
        self._free.setdefault(nbytes, []).append(remote)

    def trim(self) -> None:
        """Free all device memory that no tensor uses."""
        free, self._free = self._free, {}
        for buffers in free.values():
            for buffer in buffers:
                with suppress(TapmlError):
                    self.session.free(buffer)

    def write(self, buffer: DeviceBuffer, array: Array) -> None:
        """Copy a host tensor to the device."""
        self.session.write(buffer.remote, flat_bytes(array))
        self.bytes_written += array.nbytes

    def weight(self, name: str, array: Array) -> DeviceBuffer:
        """A weight on the device, uploaded on first use."""
        return self.weights([name], {name: array})[name]

    def weights(
        self, names: Collection[str], arrays: Mapping[str, Array]
    ) -> dict[str, DeviceBuffer]:
        """Weights on the device by name; those used for the first time are uploaded together.

        Data that the device's server already holds, from any session, is not sent.
        """
        missing = {name: arrays[name] for name in names if name not in self._weights}
        if missing:
            buffers = {name: self.acquire(array.nbytes) for name, array in missing.items()}
            self.session.write_blobs(
                BlobWrite(buffers[name].remote, flat_bytes(array))
                for name, array in missing.items()
            )
            nbytes = sum(array.nbytes for array in missing.values())
            self.bytes_written += nbytes
            self.weight_bytes_written += nbytes
            self._weights.update(buffers)
        return {name: self._weights[name] for name in names}

    def forget_weights(self) -> None:
        """Upload every weight again on its next use."""
        self._weights.clear()

    def distrust(self) -> None:
        """After a failure on the device, never reuse a buffer handed out so far.

        Allocations and writes since the last reply may have been skipped.
        """
        self.forget_weights()
        self.trim()
        self.pool += 1

    def load(self, operator: str, library: Library) -> None:
        """Upload the Library that holds `operator`.

        Raises
        ------
        InputError
            If the Library has no such operator.
        CompileError
            If a kernel does not build on the device.
        """
        check_holds(operator, library)
        self._waiting.pop(operator, None)
        self._libraries[operator] = self.session.upload(library)

    def load_later(self, operator: str, read: ReadLibrary) -> None:
        """Upload a Library just before the next run: reading it and building kernels is slow."""
        self._libraries.pop(operator, None)
        self._waiting[operator] = read

    def load_waiting(self, operators: Collection[str]) -> None:
        """Upload pending Libraries of `operators`; raises like :meth:`load` and their readers."""
        for operator in [each for each in self._waiting if each in operators]:
            self.load(operator, self._waiting[operator]())

    def call(
        self,
        operator: str,
        tensors: list[tuple[DeviceBuffer, int, tuple[int, ...], str]],
        symbols: Mapping[str, int],
    ) -> None:
        """Enqueue an operator over (buffer, byte offset, shape, dtype) in parameter order."""
        self.session.call(
            self._libraries[operator],
            operator,
            [
                RemoteTensor(buffer.remote, byte_offset, shape, dtype)
                for buffer, byte_offset, shape, dtype in tensors
            ],
            symbols,
        )

    def read(self, buffer: DeviceBuffer) -> memoryview:
        """Wait for a buffer's bytes."""
        self.bytes_read += buffer.nbytes
        read: memoryview = self.session.read(buffer.remote, buffer.nbytes)
        return read

    def read_later(self, batch: Batch, buffer: DeviceBuffer) -> PendingRead:
        """Request a buffer's bytes; they arrive with the batch's reply."""
        self.bytes_read += buffer.nbytes
        return batch.read(buffer.remote, buffer.nbytes)


def reference_failure(name: str, error: TapmlError) -> ReferenceFailedError:
    """What a failure of the reference's device is raised as."""
    if isinstance(error, DeviceLostError):
        return ReferenceLostError(f"the reference {name} was lost: {error}")
    return ReferenceFailedError(f"the reference {name} failed: {error}")


def check_holds(operator: str, library: Library) -> None:
    """Raise :class:`InputError` unless a Library has an operator."""
    if operator not in library.operators:
        raise InputError(
            f"the Library for {library.target} has no operator {operator!r}; "
            f"it has {', '.join(library.operators) or 'none'}"
        )
