"""The lock of a run folder, which one process at a time holds.

It is a ``flock`` on a file, which the kernel releases when the holder dies. The file names the
holder; if it does and is not locked, the holder died without releasing it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from tapml.durable.files import has_name
from tapml_targets.errors import SetupError
from tapml_targets.failpoints import failpoint

LOCK: Final = "lock"
"""The lock file in a run folder."""
# Longer than `is_held` holds the lock.
_LOOK_SECONDS: Final = 0.05
_MAX_BYTES: Final = 1024
_LONGEST: Final = 80
_NO_LOCKS: Final = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL}


class Holder(msgspec.Struct, frozen=True):
    """The process that holds a run folder, or held it when it died; `since` is in UTC, ISO 8601."""

    process: int
    host: str
    since: str

    def __str__(self) -> str:
        host, since = (
            "".join(each for each in text if each.isprintable())[:_LONGEST]
            for text in (self.host, self.since)
        )
        return f"process {self.process} on {host} since {since}"


class RunLock:
    """The lock of a folder; :meth:`hold` creates the file `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def hold(self) -> Iterator[Holder | None]:
        """Hold the lock while the block runs.

        Yields
        ------
        Holder | None
            The last holder, if it died instead of releasing the lock.

        Raises
        ------
        SetupError
            If another process holds it, it cannot be written, or its file system has no locks.
        """
        with self._refusals():
            descriptor = self._take()
        try:
            with self._refusals():
                died = _read(descriptor)
                self._write(descriptor)
            holder = os.getpid()
            try:
                yield died
            finally:
                # A forked child shares the lock: it must not release it, and must not keep it
                # after its parent.
                if os.getpid() == holder:
                    with suppress(OSError):
                        os.ftruncate(descriptor, 0)
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    @contextmanager
    def keep_free(self) -> Iterator[bool]:
        """Take the lock for a short write by a process that does not run the work.

        The name of a dead holder stays in the lock file, for the next run to report.

        Yields
        ------
        bool
            False if a process holds the lock, or there is no lock file.
        """
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            yield False
            return
        try:
            yield _try(descriptor, fcntl.LOCK_EX) and has_name(descriptor, self.path)
        finally:
            os.close(descriptor)

    @property
    def is_held(self) -> bool:
        """Whether a process holds the lock now.

        The test takes a shared lock for a moment, so several tests do not block each other.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return has_name(descriptor, self.path)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return False

    def _take(self) -> int:
        """Take the lock, and return the open file.

        The holder may remove the file. A lock on the removed file is worthless, because the next
        process creates a new file: hence the check that the file still has its name.
        """
        waited = False
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if has_name(descriptor, self.path):
                    return descriptor
            except BlockingIOError:
                # `is_held` has released the lock after the wait; a holder has not.
                if waited and has_name(descriptor, self.path):
                    holder = _read(descriptor)
                    os.close(descriptor)
                    raise SetupError(self._held_by(holder)) from None
                waited = True
                time.sleep(_LOOK_SECONDS)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _write(self, descriptor: int) -> None:
        since = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
        data = msgspec.json.encode(Holder(os.getpid(), socket.gethostname(), since))
        with failpoint("write", self.path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, data, 0)

    def _held_by(self, holder: Holder | None) -> str:
        who = "another process" if holder is None else str(holder)
        where = ""
        if holder is not None and holder.host != socket.gethostname():
            where = " (another machine, through a shared file system)"
        return (
            f"{self.path.parent} is held by {who}{where}; wait for it to end, or stop it, then try "
            "again"
        )

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Turn an OSError into a SetupError that says what to do."""
        try:
            yield
        except OSError as error:
            if error.errno in _NO_LOCKS:
                raise SetupError(
                    f"the file system of {self.path.parent} cannot lock files ({error.strerror}); "
                    "choose a folder on a local disk"
                ) from error
            raise SetupError(
                f"cannot hold {self.path.parent}: {self.path}: {error.strerror}; free some space, "
                "fix the permissions or choose another folder, then run it again"
            ) from error


def _try(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _read(descriptor: int) -> Holder | None:
    """The holder that a lock file names, or None."""
    try:
        return msgspec.json.decode(os.pread(descriptor, _MAX_BYTES, 0), type=Holder)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
