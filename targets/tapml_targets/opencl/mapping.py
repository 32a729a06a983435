"""Device memory that this process fills where it lies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tapml_targets.opencl.discovery import import_pyopencl


@contextmanager
def mapped_for_writing(
    queue: Any, memory: Any, byte_offset: int, nbytes: int
) -> Iterator[memoryview]:
    """A window on a buffer, after all that was enqueued before, to be overwritten whole.

    Raises
    ------
    pyopencl.Error
        If the driver does not map it, or not take it back.
    """
    import numpy as np

    cl = import_pyopencl()
    array, _ = cl.enqueue_map_buffer(
        queue,
        memory,
        cl.map_flags.WRITE_INVALIDATE_REGION,
        byte_offset,
        (nbytes,),
        np.uint8,
        is_blocking=True,
    )
    try:
        yield array.data
    finally:
        array.base.release(queue)
