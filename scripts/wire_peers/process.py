"""Runs a peer's server in a separate process."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from scripts.processes import family, processor_ticks

Bytes = npt.NDArray[np.uint8]

REQUEST: Final = struct.Struct("<cQ")
UPLOAD, DOWNLOAD = b"u", b"d"
MOST_BYTES: Final = 128 << 20
ROUND_BYTES: Final = 16 << 20
"""Short transfers cycle through this much memory at either end."""
_SETTLE_SECONDS: Final = 20.0


class Peer(Protocol):
    """One way to send and fetch bytes."""

    def upload(self, data: Bytes) -> None:
        """Return once all of them lie in the other process's memory."""

    def download(self, nbytes: int) -> Bytes:
        """As many bytes of the other process's memory, in memory of this one."""


@contextmanager
def peer_process(name: str) -> Iterator[int]:
    """Run the server of a peer; gives its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"scripts.wire_peers.{name}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def settle() -> None:
    """Wait until this process's children are idle: servers prepare for more clients."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    before = _clock_ticks()
    while time.monotonic() < deadline:
        time.sleep(0.5)
        before, last = _clock_ticks(), before
        if before - last <= 1:
            return


def _clock_ticks() -> int:
    """Processor time of the processes that descend from this one."""
    ticks = 0
    for pid in family(os.getpid())[1:]:
        with suppress(OSError):
            ticks += processor_ticks(pid)
    return ticks


class Windows:
    """A server's memory, touched once; each transfer has its own window.

    A session's tensors have separate memory as well. With one window for all, raw servers of one
    run differed by a factor of two and a half, most of them permanently; with sixteen windows by
    less (docs/benchmarks.md).
    """

    def __init__(self) -> None:
        self.held: Bytes = np.ones(MOST_BYTES, np.uint8)
        self._next = 0

    def start(self, nbytes: int) -> int:
        """Where the next window of so many bytes begins."""
        start = self._next if self._next + nbytes <= ROUND_BYTES else 0
        self._next = start + nbytes
        return start

    def window(self, nbytes: int) -> Bytes:
        """The next so many bytes."""
        start = self.start(nbytes)
        return self.held[start : start + nbytes]
