"""One process at a time holds a session.

A lock of the operating system on a file, not a file with a process number in it: the kernel lets
go of it when its holder dies, however it dies, so a stale lock cannot exist on one machine.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tapml_targets.errors import SetupError


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold the lock file at `path` while the block runs.

    Raises
    ------
    SetupError
        If another process holds it (its process number is named) or it cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SetupError(f"cannot lock the session: {path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise SetupError(
                f"session {path.parent} is held by process {holder}; "
                "wait for it to end, or stop it, then try again"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
