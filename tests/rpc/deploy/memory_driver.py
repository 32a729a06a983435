"""A device of plain Python: memory that can be written, filled, copied and read, and no kernels."""

from __future__ import annotations

from typing import Any

from tapml_targets.driver import DeviceDescription
from tapml_targets.limits import Limits


class MemoryDriver:
    """The part of :class:`tapml_targets.driver.Driver` that batches without calls use."""

    def __init__(self) -> None:
        self.description = DeviceDescription(
            "memory", 0, "bytes", "Python", "cpu", "1", Limits(memory_bytes=1 << 20)
        )
        self.held = 0

    def allocate(self, nbytes: int) -> bytearray:
        self.held += 1
        return bytearray(nbytes)

    def free(self, buffer: bytearray) -> None:
        self.held -= 1

    def write(self, buffer: bytearray, byte_offset: int, data: memoryview) -> None:
        buffer[byte_offset : byte_offset + len(data)] = data

    def read(self, buffer: bytearray, byte_offset: int, nbytes: int) -> memoryview:
        return memoryview(buffer)[byte_offset : byte_offset + nbytes]

    def read_into(self, buffer: bytearray, byte_offset: int, target: memoryview) -> None:
        target[:] = self.read(buffer, byte_offset, target.nbytes)

    def fill(self, buffer: bytearray, byte_offset: int, nbytes: int, pattern: bytes) -> None:
        data = pattern * (nbytes // len(pattern) + 1)
        buffer[byte_offset : byte_offset + nbytes] = data[:nbytes]

    def copy(
        self,
        source: bytearray,
        source_offset: int,
        target: bytearray,
        target_offset: int,
        nbytes: int,
    ) -> None:
        self.write(target, target_offset, self.read(source, source_offset, nbytes))

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a device without kernels has no {name}")
