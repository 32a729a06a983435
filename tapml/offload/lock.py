"""One process at a time holds a session.

A lock of the operating system on a file, not a file with a process number in it: the kernel lets
go of it when its holder dies, however it dies. Who holds it is written into the file, for the
message to whoever comes second; where that is found without a lock on it, its holder died.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tapml.durable.boundaries import crossing
from tapml_targets.errors import SetupError

# What it is called in a session's folder.
LOCK: Final = "lock"
# Longer than a look at the lock takes.
_LOOK_SECONDS: Final = 0.05
_MAX_BYTES: Final = 1024
_LONGEST: Final = 80
_NO_LOCKS: Final = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL}


@dataclass(frozen=True)
class Holder:
    """Who holds a session, or held it when it died.

    Attributes
    ----------
    process
        Its number.
    host
        The machine it runs on.
    since
        When it took the session, in UTC, ISO 8601.
    """

    process: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.process} on {self.host} since {self.since}"


@contextmanager
def hold(path: Path) -> Iterator[Holder | None]:
    """Hold the lock file at `path` while the block runs.

    Yields
    ------
    Holder | None
        The last holder, where it died instead of letting go.

    Raises
    ------
    SetupError
        If another process holds it (process, host and since when are named), if it cannot be
        written, or if its file system has no locks.
    """
    with _refusals(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with _refusals(path):
            try:
                _take(descriptor)
            except BlockingIOError:
                raise SetupError(_held(path, _read(descriptor))) from None
            died = _read(descriptor)
            _write(descriptor, path)
        holder = os.getpid()
        try:
            yield died
        finally:
            # A forked child has the lock as well: its end changes nothing, and its life must not
            # outlast the holder's.
            if os.getpid() == holder:
                with suppress(OSError):
                    os.ftruncate(descriptor, 0)
                fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """What the operating system says against the lock, with what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise SetupError(
                f"the file system of {path.parent} cannot lock files ({error.strerror}); keep the "
                "session on a local disk (--session)"
            ) from error
        raise SetupError(
            f"cannot hold the session: {path}: {error.strerror}; free some space, fix the "
            "permissions or choose another folder (--session), then run it again"
        ) from error


def _held(path: Path, holder: Holder | None) -> str:
    who = "another process" if holder is None else str(holder)
    where = ""
    if holder is not None and holder.host != socket.gethostname():
        where = " (another machine, through a shared file system)"
    return (
        f"session {path.parent} is held by {who}{where}; wait for it to end, or stop it, then try "
        "again"
    )


def _read(descriptor: int) -> Holder | None:
    """Who wrote into the lock file; None where nobody did, or something else."""
    try:
        data = json.loads(os.pread(descriptor, _MAX_BYTES, 0))
        process, texts = int(data["process"]), (str(data["host"]), str(data["since"]))
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    host, since = ("".join(c for c in text if c.isprintable())[:_LONGEST] for text in texts)
    return Holder(process, host, since)


def _write(descriptor: int, path: Path) -> None:
    since = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    data = json.dumps(asdict(Holder(os.getpid(), socket.gethostname(), since))).encode()
    with crossing("write", path):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, data, 0)


def _take(descriptor: int) -> None:
    """Take the lock, at a second try where only somebody who looked had it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(_LOOK_SECONDS)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def unheld(path: Path) -> Iterator[bool]:
    """Keep a session that nobody holds from being held while the block runs.

    For something short by whoever does not run the session: what a dead holder left in the lock
    file stays for the next run to tell.

    Yields
    ------
    bool
        False where a process holds it, or there is no lock file to look at.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except OSError:
            free = False
        yield free
    finally:
        os.close(descriptor)


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
