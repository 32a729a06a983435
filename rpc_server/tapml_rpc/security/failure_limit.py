"""Counts recent failures by address, in bounded memory."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Final

FAILURES: Final = 10
FAILURE_SECONDS: Final = 60.0
_ADDRESSES: Final = 4096


class FailureLimit:
    """Counts failures by address, in bounded memory.

    The last 64 bits of IPv6 are ignored: one client owns them all.
    """

    def __init__(
        self,
        failures: int = FAILURES,
        seconds: float = FAILURE_SECONDS,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._failures = failures
        self._seconds = seconds
        self._clock = clock
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def note(self, address: str) -> float:
        """Count a failure; seconds to wait from now on, 0 while there have been few."""
        key = _network(address)
        now = self._clock()
        times = self._times.setdefault(key, deque(maxlen=self._failures))
        self._times.move_to_end(key)
        if len(self._times) > _ADDRESSES:
            self._times.popitem(last=False)
        while times and now - times[0] >= self._seconds:
            times.popleft()
        waiting = 0.0
        if len(times) == self._failures:
            waiting = self._seconds - (now - times[0])
        else:
            times.append(now)
        return waiting


def _network(address: str) -> str:
    try:
        number = ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(number, IPv6Address):
        if number.ipv4_mapped is not None:
            return str(number.ipv4_mapped)
        return str(IPv6Address(int(number) >> 64 << 64))
    return str(number)
