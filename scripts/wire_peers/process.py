"""A peer's server in a process of its own."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

REQUEST: Final = struct.Struct("<cQ")
UPLOAD, DOWNLOAD = b"u", b"d"
MOST_BYTES: Final = 128 << 20


class Peer(Protocol):
    """One way to bring bytes there and back."""

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


def memory() -> Bytes:
    """What a server keeps its bytes in, touched once."""
    return np.ones(MOST_BYTES, np.uint8)
