"""The memory half of a driver, which is the same on every platform but for the copying itself.

Every window is checked here, before a driver's own methods see it: those are given windows within
the buffer, patterns that are not empty, and copies of one buffer onto itself separately.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import InputError


class DeviceMemory:
    """A buffer of a device; each platform adds what it keeps of it.

    Attributes
    ----------
    nbytes
        Bytes that may be used; 0 once it is freed.
    freed
        Whether it is.
    """

    __slots__ = ("freed", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.freed = False

    def check(self, byte_offset: int, nbytes: int, what: str) -> None:
        """Raise InputError if a window is not within the buffer, or the buffer is freed."""
        if self.freed:
            raise InputError(f"{what}: the buffer has been freed")
        if byte_offset < 0 or nbytes < 0 or byte_offset + nbytes > self.nbytes:
            raise InputError(
                f"{what}: bytes {byte_offset} to {byte_offset + nbytes} are outside a buffer of "
                f"{self.nbytes} bytes"
            )

    def release(self) -> None:
        """Note that the memory has been given back."""
        self.freed = True
        self.nbytes = 0


Memory = TypeVar("Memory", bound=DeviceMemory)


class MemoryCommands(ABC, Generic[Memory]):
    """What :class:`tapml_targets.driver.Driver` says of memory, by methods that copy bytes."""

    description: DeviceDescription
    filled_at_once: ClassVar[int] = 1 << 20
    """Bytes to which a pattern is repeated before it is written."""

    def allocate(self, nbytes: int) -> Memory:
        """See :meth:`Driver.allocate`."""
        most = self.description.limits.max_buffer_bytes
        if not 0 <= nbytes <= most:
            raise InputError(
                f"cannot allocate {nbytes} bytes: one buffer on {self.description.name} has at "
                f"most {most}"
            )
        return self._allocate(nbytes)

    def nbytes(self, buffer: Memory) -> int:
        """See :meth:`Driver.nbytes`."""
        return buffer.nbytes

    def free(self, buffer: Memory) -> None:
        """See :meth:`Driver.free`."""
        buffer.release()

    def write(self, buffer: Memory, byte_offset: int, data: memoryview) -> None:
        """See :meth:`Driver.write`."""
        data = memoryview(data).cast("B")
        buffer.check(byte_offset, len(data), "write")
        if len(data):
            self._write(buffer, byte_offset, data)

    def read(self, buffer: Memory, byte_offset: int, nbytes: int) -> memoryview:
        """See :meth:`Driver.read`."""
        buffer.check(byte_offset, nbytes, "read")
        # Memory of numpy's is not cleared first. Not every board has numpy.
        import numpy as np

        data = np.empty(nbytes, np.uint8).data
        self.read_into(buffer, byte_offset, data)
        return data

    def read_into(self, buffer: Memory, byte_offset: int, target: memoryview) -> None:
        """See :meth:`Driver.read_into`."""
        target = memoryview(target).cast("B")
        buffer.check(byte_offset, len(target), "read")
        self._read_into(buffer, byte_offset, target)

    def fill(self, buffer: Memory, byte_offset: int, nbytes: int, pattern: bytes) -> None:
        """See :meth:`Driver.fill`."""
        buffer.check(byte_offset, nbytes, "fill")
        if not pattern:
            raise InputError("fill: the pattern must hold at least one byte")
        if nbytes:
            self._fill(buffer, byte_offset, nbytes, pattern)

    def copy(
        self, source: Memory, source_offset: int, target: Memory, target_offset: int, nbytes: int
    ) -> None:
        """See :meth:`Driver.copy`."""
        source.check(source_offset, nbytes, "copy from")
        target.check(target_offset, nbytes, "copy to")
        if source is target and abs(source_offset - target_offset) < nbytes:
            self._copy_onto_itself(source, source_offset, target_offset, nbytes)
        elif nbytes:
            self._copy(source, source_offset, target, target_offset, nbytes)

    @abstractmethod
    def _allocate(self, nbytes: int) -> Memory:
        """Reserve memory that the device's limits allow."""

    @abstractmethod
    def _write(self, buffer: Memory, byte_offset: int, data: memoryview) -> None:
        """Copy at least one byte to the device."""

    @abstractmethod
    def _read_into(self, buffer: Memory, byte_offset: int, target: memoryview) -> None:
        """Copy from the device, after all earlier launches; `target` may be empty."""

    @abstractmethod
    def _copy(
        self, source: Memory, source_offset: int, target: Memory, target_offset: int, nbytes: int
    ) -> None:
        """Copy at least one byte between windows that do not overlap."""

    def _copy_onto_itself(
        self, buffer: Memory, source_offset: int, target_offset: int, nbytes: int
    ) -> None:
        """Copy between windows that overlap, as if the source were read first."""
        self._write(buffer, target_offset, self.read(buffer, source_offset, nbytes))

    def _fill(
        self, buffer: Memory, byte_offset: int, nbytes: int, pattern: bytes, phase: int = 0
    ) -> None:
        """Repeat `pattern` from its byte `phase` on, by writing it."""
        size = len(pattern)
        phase %= size
        step = max(1, self.filled_at_once // size) * size
        data = memoryview(pattern * (min(nbytes, step) // size + 2))[phase:]
        for start in range(0, nbytes, step):
            self._write(buffer, byte_offset + start, data[: min(step, nbytes - start)])
