"""One process at a time holds a session.

A lock of the operating system on a file, not a file with a process number in it: the kernel lets
go of it when its holder dies, however it dies, so a stale lock cannot exist on one machine.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tapml_targets.errors import SetupError

# What it is called in a session's folder.
LOCK: Final = "lock"
# Longer than a look at the lock takes.
_LOOK_SECONDS: Final = 0.05


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
            _take(descriptor)
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


def _take(descriptor: int) -> None:
    """Take the lock, at a second try where only somebody who looked had it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(_LOOK_SECONDS)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(path: Path) -> bool:
    """Whether a process holds the lock file at `path`; a file left by a dead one is not held.

    Looking takes the lock for a moment, shared, so that looks do not hinder each other.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
