"""What a device can take: the bounds that a kernel is checked against before it is uploaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from msgspec import Meta

Count: TypeAlias = Annotated[int, Meta(ge=0)]


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
        What kernels may use: arithmetic in ``float16``, ``float64`` and ``int64``; memory whose
        elements have 8 or 16 bits, ``int8`` and ``int16``; ``subgroups``; and
        ``dynamic_shared_memory``, which a launch asks for.
    max_binding_bytes
        Largest window of a buffer that a kernel may be given; it may be smaller than the buffer.
    max_storage_buffers
        Buffers that one kernel may be given, scalars apart.
    offset_alignment
        Bytes that a window's start is a multiple of, where the driver is not to copy it.
    subgroup_widths
        Fewest and most threads of a subgroup (warp, wave) that a kernel may require.
    architecture
        What its machine code is made for: ``sm_90``, ``gfx90a``, ``apple-m1``, ``x86_64``; empty
        where the platform names none.
    push_constant_bytes
        Bytes of numbers that a launch may push.
    """

    max_threads_per_block: Count = 0
    max_block: tuple[Count, Count, Count] = (0, 0, 0)
    max_grid: tuple[Count, Count, Count] = (0, 0, 0)
    max_shared_memory_bytes: Count = 0
    max_buffer_bytes: Count = 0
    memory_bytes: Count = 0
    max_arguments: Count = 0
    features: frozenset[str] = frozenset()
    max_binding_bytes: Count = 0
    max_storage_buffers: Count = 0
    offset_alignment: Count = 0
    subgroup_widths: tuple[Count, Count] = (0, 0)
    architecture: str = ""
    push_constant_bytes: Count = 0
