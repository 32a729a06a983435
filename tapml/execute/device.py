"""The device's side of a hybrid run: memory, weights that stay, commands in batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from tapml.execute.arrays import Array, flat_bytes
from tapml_rpc.blob_upload import BlobWrite
from tapml_rpc.remote import RemoteTensor
from tapml_targets.errors import InputError, TapmlError
from tapml_targets.library import Library

if TYPE_CHECKING:
    from tapml_rpc.client import Batch, Session
    from tapml_rpc.pending import PendingRead
    from tapml_rpc.remote import RemoteBuffer, RemoteLibrary

ReadLibrary: TypeAlias = Callable[[], Library]


class DeviceBuffer:
    """Device memory that goes back to its pool when nothing refers to it any more.

    State, snapshots of it and running programs hold buffers by reference, so none of them has to
    know who else does. Commands run in order: memory may be given to the next user at once.
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
    """Buffers of one session, reused by size, and what is uploaded once.

    Attributes
    ----------
    session
        The connection to the device.
    bytes_written, bytes_read
        Tensor bytes moved so far, weights included, whether or not a server held them already.
    weight_bytes_written
        How many of them were weights.
    pool
        Number of the pool that buffers come from now; a failure begins another.
    limit_bytes
        Most that all of the session's buffers should take; 0 for no bound. Beyond it memory that no
        tensor uses is freed before there is more.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.bytes_written = 0
        self.bytes_read = 0
        self.weight_bytes_written = 0
        self.pool = 0
        self.limit_bytes = 0
        self._free: dict[int, list[RemoteBuffer]] = {}
        self._weights: dict[str, DeviceBuffer] = {}
        self._libraries: dict[str, RemoteLibrary] = {}
        self._waiting: dict[str, ReadLibrary] = {}

    def acquire(self, nbytes: int) -> DeviceBuffer:
        """Memory of `nbytes` bytes, its content undefined."""
        free = self._free.get(nbytes)
        remote = free.pop() if free else self._allocate(max(1, nbytes))
        return DeviceBuffer(self, remote, nbytes)

    def _allocate(self, nbytes: int) -> RemoteBuffer:
        if self.limit_bytes and self.session.held_bytes + nbytes > self.limit_bytes:
            self.trim()
        return self.session.allocate(nbytes)

    def give_back(self, remote: RemoteBuffer, nbytes: int) -> None:
        """Keep a buffer for the next tensor of its size."""
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
        """A weight on the device, uploaded at its first use."""
        return self.weights([name], {name: array})[name]

    def weights(
        self, names: Collection[str], arrays: Mapping[str, Array]
    ) -> dict[str, DeviceBuffer]:
        """Weights on the device by name; those used for the first time are uploaded together.

        What the device's server holds already, from this session or another, is not sent.
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
        """Upload every weight again at its next use."""
        self._weights.clear()

    def distrust(self) -> None:
        """After a failure on the device: nothing handed out so far is used again.

        Allocations and writes since the last answer may have been skipped.
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
        """Upload a Library before the next run alone: it takes reading it and building kernels."""
        self._libraries.pop(operator, None)
        self._waiting[operator] = read

    def load_waiting(self, operators: Collection[str]) -> None:
        """Upload what waits of `operators`; raises what :meth:`load` and reading a Library do."""
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
        """Ask for a buffer's bytes; they come with the batch's reply."""
        self.bytes_read += buffer.nbytes
        return batch.read(buffer.remote, buffer.nbytes)


def check_holds(operator: str, library: Library) -> None:
    """Raise :class:`InputError` unless a Library has an operator."""
    if operator not in library.operators:
        raise InputError(
            f"the Library for {library.target} has no operator {operator!r}; "
            f"it has {', '.join(library.operators) or 'none'}"
        )
