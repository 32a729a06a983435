"""One set-up at a time.

The lock lies beside the environment, which may be deleted under it. The system frees it when the
last process that holds it ends; pip inherits it, so a killed script does not free it while its pip
still writes.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(folder: Path, on_wait: Callable[[str], None]) -> Iterator[int]:
    """Hold the lock of an environment.

    Parameters
    ----------
    folder
        The environment's folder; the lock file is ``<folder>.lock``.
    on_wait
        Called once, with the holder's process number, before waiting for another set-up.

    Yields
    ------
    The file descriptor of the lock, for child processes to inherit.
    """
    path = folder.with_name(folder.name + ".lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait(os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)
