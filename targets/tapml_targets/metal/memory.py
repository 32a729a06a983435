"""Buffers that processor and GPU share."""

from __future__ import annotations

from typing import Any

from tapml_targets.memory_commands import DeviceMemory


class MetalBuffer(DeviceMemory):
    """Memory of a device, seen by this process as well.

    Attributes
    ----------
    memory
        The MTLBuffer, in shared storage; None once it is released. Command buffers hold those that
        they use.
    view
        Its bytes; what the GPU has not finished is not there yet.
    """

    __slots__ = ("memory", "view")

    def __init__(self, memory: Any, nbytes: int) -> None:
        super().__init__(nbytes)
        self.memory = memory
        self.view = memoryview(memory.contents().as_buffer(max(1, nbytes))).cast("B")

    def release(self) -> None:
        """See :meth:`DeviceMemory.release`."""
        super().release()
        self.view = memoryview(b"")
        self.memory = None
