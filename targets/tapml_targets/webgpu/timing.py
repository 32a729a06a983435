"""Kernel times from the timestamps around passes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from tapml_targets.webgpu.commands import Queries
from tapml_targets.webgpu.staging import Staging


def nanoseconds(staging: Staging, queue: Any, timed: Sequence[Queries]) -> int:
    """The sum over all passes, from each one's first timestamp to its second."""
    ticks = 0
    for queries in timed:
        data = memoryview(bytearray(8 * queries.count))
        staging.read_into(queries.memory, 0, data)
        stamps = struct.unpack(f"<{queries.count}Q", data)
        # If a device resets its clock within a pass, that pass counts as zero.
        ticks += sum(
            max(0, end - begin) for begin, end in zip(stamps[::2], stamps[1::2], strict=True)
        )
    return round(ticks * _period(queue))


def _period(queue: Any) -> float:
    """Nanoseconds of a tick, which wgpu gives only below its Python interface."""
    try:
        from wgpu.backends.wgpu_native._ffi import lib

        return float(lib.wgpuQueueGetTimestampPeriod(queue._internal))
    except (ImportError, AttributeError):
        return 1.0
