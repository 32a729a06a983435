"""What a device can take: the bounds that a kernel is checked against before it is uploaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of one device; 0 means that the platform states no bound.

    Attributes
    ----------
    max_threads_per_block
        Product of block extents.
    max_block
        Block extents per axis (x, y, z).
    max_grid
        Grid extents per axis (x, y, z).
    max_shared_memory_bytes
        Shared (local, workgroup) memory of one block.
    max_buffer_bytes
        Largest single allocation.
    memory_bytes
        Memory of the device.
    max_arguments
        Arguments (bindings) one kernel may take.
    features
        What kernels may use: ``float16``, ``float64``, ``subgroups``, ...
    max_binding_bytes
        Largest window of a buffer that a kernel may be given; it may be smaller than the buffer.
    max_storage_buffers
        Buffers that one kernel may be given, scalars apart.
    offset_alignment
        Bytes that a window's start is a multiple of, where the driver is not to copy it.
    """

    max_threads_per_block: int = 0
    max_block: tuple[int, int, int] = (0, 0, 0)
    max_grid: tuple[int, int, int] = (0, 0, 0)
    max_shared_memory_bytes: int = 0
    max_buffer_bytes: int = 0
    memory_bytes: int = 0
    max_arguments: int = 0
    features: frozenset[str] = frozenset()
    max_binding_bytes: int = 0
    max_storage_buffers: int = 0
    offset_alignment: int = 0
