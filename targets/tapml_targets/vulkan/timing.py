"""How long kernels ran: timestamps around every launch, or the clock where a device has none."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from tapml_targets.vulkan.api import NULL, check, created, ffi, lib, struct

_PAIRS: Final = 512
_TIMESTAMPS: Final = 2
_BOTTOM_OF_PIPE: Final = 0x2000
_RESULTS: Final = 1 | 2  # 64 bits, waited for


class Timer:
    """Measures launches on a device with timestamps.

    Parameters
    ----------
    device
        The open device.
    bits
        That count of a timestamp.
    nanoseconds
        What it counts in.
    name
        The device's, for errors.
    """

    def __init__(self, device: Any, bits: int, nanoseconds: float, name: str) -> None:
        self._device = device
        self._mask = (1 << bits) - 1
        self._nanoseconds = nanoseconds
        self._name = name
        self._pools: list[Any] = []
        self._count = 0
        self._total: int | None = None

    def before(self, commands: Any) -> None:
        """Record the moment before a launch."""
        if self._count == _PAIRS * len(self._pools):
            info = struct("VkQueryPoolCreateInfo", queryType=_TIMESTAMPS, queryCount=2 * _PAIRS)
            pool = created(
                lib.vkCreateQueryPool, "VkQueryPool", self._name, "timing", self._device, info
            )
            self._pools.append(pool)
        place = 2 * (self._count % _PAIRS)
        lib.vkCmdResetQueryPool(commands, self._pools[-1], place, 2)
        lib.vkCmdWriteTimestamp(commands, _BOTTOM_OF_PIPE, self._pools[-1], place)

    def after(self, commands: Any) -> None:
        """Record the moment after it."""
        place = 2 * (self._count % _PAIRS) + 1
        lib.vkCmdWriteTimestamp(commands, _BOTTOM_OF_PIPE, self._pools[-1], place)
        self._count += 1

    def elapsed(self) -> int:
        """Nanoseconds of all launches, whose work has ended."""
        if self._total is None:
            ticks = sum(map(self._ticks, range(len(self._pools))))
            self._total = round(ticks * self._nanoseconds)
        return self._total

    def destroyer(self) -> Callable[[], None]:
        """What gives the memory of the timestamps back once their work has ended."""
        device, pools = self._device, self._pools

        def destroy() -> None:
            for pool in pools:
                lib.vkDestroyQueryPool(device, pool, NULL)

        return destroy

    def _ticks(self, index: int) -> int:
        pairs = min(_PAIRS, self._count - index * _PAIRS)
        found = ffi.new("uint64_t[]", 2 * pairs)
        result = lib.vkGetQueryPoolResults(
            self._device, self._pools[index], 0, 2 * pairs, 16 * pairs, found, 8, _RESULTS
        )
        check(result, self._name, "timing")
        return sum((found[2 * i + 1] - found[2 * i]) & self._mask for i in range(pairs))


def clock(finish: Callable[[], None]) -> Callable[[], Callable[[], int]]:
    """Measure by the clock from now until the result is called; `finish` waits for the work."""
    finish()
    start = time.perf_counter_ns()

    def stop() -> Callable[[], int]:
        finish()
        elapsed = time.perf_counter_ns() - start
        return lambda: elapsed

    return stop
