"""Atomic, durable replacement of files and folders.

A reader sees the old content or the new one, never a mixture, even after a crash or power failure.
The content is synced before it gets its name, and the name before the call returns.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tapml_targets.errors import SetupError
from tapml_targets.failpoints import failpoint

# Suffixes of a folder that is being replaced (it is complete), and of one that is being removed.
_REPLACED: Final = "replaced"
_REMOVED: Final = "removed"
_HERE: Final = -100 if sys.platform.startswith("linux") else -2  # AT_FDCWD
_EXCHANGE: Final = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
# Errors of kernels and file systems that cannot exchange two names.
_NO_EXCHANGE: Final = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV}
# Errors of file systems that cannot sync a folder.
_NO_FOLDER_SYNC: Final = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}
_DEVICES: Final = Path("/dev")


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file atomically.

    Raises
    ------
    SetupError
        If it cannot be written; the old content stays.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_bytes(Path(folder, "a"), b"content")
    ...     [(each.name, each.read_bytes()) for each in Path(folder).iterdir()]
    [('a', b'content')]
    """
    with writing(path), replace_file(path) as partial:
        partial.write_bytes(data)


@contextmanager
def replace_file(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a path to write to; at the end of the block, that file replaces `path`.

    If several processes write the same file, they do so one after the other. A device, a pipe and
    whatever ``/dev`` names are no files to replace: `path` itself is yielded.

    Parameters
    ----------
    path
        The file to be replaced; it need not exist.
    durable
        Whether to sync the file. Without, its content may be lost in a power failure, and it is
        not a failpoint (:mod:`tapml_targets.failpoints`).

    Raises
    ------
    OSError
        If it cannot be written; the old content stays.
    """
    if path.parent == _DEVICES or _is_special(path):
        yield path
        return
    # A fixed name, so that the next writer overwrites the leftovers of a killed process.
    partial = path.with_name(f".{path.name}.partial")
    with _only_writer(partial):
        try:
            if not durable:
                yield partial
                partial.replace(path)
                return
            with failpoint("write", path):
                yield partial
            sync_file(partial, place=path)
            with failpoint("rename", path):
                partial.replace(path)
            sync_folder(path.parent)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


@contextmanager
def _only_writer(partial: Path) -> Iterator[None]:
    """Create the partial file, or wait until no other process writes it."""
    while True:
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with _locked(descriptor):
                # The previous writer may have renamed the file that was opened here.
                if has_name(descriptor, partial):
                    yield
                    return
        finally:
            os.close(descriptor)


def has_name(descriptor: int, path: Path) -> bool:
    """Whether `path` still names an open file: it was not renamed, removed or replaced."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    """Lock an open file, if its file system supports locks."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        # A child forked in the block shares the lock and may outlive it.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically with UTF-8 text."""
    write_bytes(path, text.encode())


def write_json(path: Path, data: object) -> None:
    """Replace a file atomically with JSON."""
    import json

    write_text(path, json.dumps(data, indent=1, allow_nan=False))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError in the block into a SetupError that says what to do."""
    try:
        yield
    except OSError as error:
        raise SetupError(
            f"cannot write {path}: {error.strerror or error}; free some space or fix the "
            "permissions, then run it again"
        ) from error


def sync_file(path: Path, *, place: Path | None = None) -> None:
    """Wait until a file's content is on the disk; `place` is its final path."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with failpoint("fsync", place or path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, if its file system supports that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with failpoint("fsync", folder):
            try:
                os.fsync(descriptor)
            except OSError as error:
                if error.errno not in _NO_FOLDER_SYNC:
                    raise
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Wait until a folder and everything in it is on the disk."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            sync_file(path)
        elif path.is_dir():
            sync_folder(path)
    sync_folder(folder)


def remove_file(path: Path) -> None:
    """Remove a file if it exists, and sync its folder. Raises SetupError if that fails."""
    with writing(path):
        if not path.exists():
            return
        with failpoint("remove", path):
            path.unlink(missing_ok=True)
        sync_folder(path.parent)


def remove_folder(folder: Path) -> None:
    """Remove a folder and its content, if it exists.

    The folder is renamed first, so a reader never sees half of it. If the process is killed, the
    next call for the same folder removes the rest.

    Raises
    ------
    SetupError
        If it cannot be removed.
    """
    leaving = _sibling(folder, _REMOVED)
    with writing(folder):
        if not folder.exists():
            return
        _remove_tree(leaving)
        with failpoint("rename", folder):
            folder.replace(leaving)
        _remove_tree(leaving)


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder to fill; at the end of the block, it replaces `folder` atomically.

    Only one process may do this at a time.

    Raises
    ------
    SetupError
        If it cannot be written; the old folder stays.
    """
    partial = _sibling(folder, "partial")
    with writing(folder):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            recover_folder(folder)
            for left in (partial, _sibling(folder, _REPLACED), _sibling(folder, _REMOVED)):
                _remove_tree(left)
            with failpoint("write", folder):
                partial.mkdir()
                yield partial
            sync_tree(partial)
            rename_folder(partial, folder)
            sync_folder(folder.parent)
            # If the names were exchanged, this is the old folder.
            _remove_tree(partial)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def rename_folder(made: Path, folder: Path) -> None:
    """Rename `made` to `folder`; an old `folder` is renamed to `made` or removed.

    The kernel exchanges the two names atomically. If it cannot, there are two renames; if the
    process is killed between them, :func:`recover_folder` restores the old folder.

    Raises
    ------
    OSError
        If a name cannot be changed; `folder` is unchanged then.
    """
    with failpoint("rename", folder):
        if not folder.exists():
            made.replace(folder)
            return
        if _exchange(made, folder):
            return
    aside = _sibling(folder, _REPLACED)
    # The lock makes a reader that finds no folder wait, instead of restoring the old one.
    with _names_locked(folder):
        with failpoint("rename", aside):
            folder.replace(aside)
        try:
            with failpoint("rename", folder):
                made.replace(folder)
        except OSError:
            aside.replace(folder)
            raise
    _remove_tree(aside)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names atomically; False if the kernel or the file system cannot."""
    # Most commands replace no folder.
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    rename = getattr(libc, "renameat2", None) or getattr(libc, "renameatx_np", None)
    if rename is None:
        return False
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), ctypes.c_uint(_EXCHANGE)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(other))


@contextmanager
def _names_locked(folder: Path) -> Iterator[None]:
    """Wait until no other process is between two renames beside `folder`."""
    descriptor = os.open(folder.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with _locked(descriptor):
            yield
    finally:
        os.close(descriptor)


def _remove_tree(folder: Path) -> None:
    if folder.exists():
        with failpoint("remove", folder):
            shutil.rmtree(folder)


def _sibling(folder: Path, what: str) -> Path:
    return folder.with_name(f".{folder.name}.{what}")


def recover_folder(folder: Path) -> str:
    """Restore a folder if a process was killed while it replaced it.

    Safe for readers, too: it waits for a live process that is replacing the folder.

    Returns
    -------
    str
        A sentence about what was done; empty if nothing was.

    Raises
    ------
    SetupError
        If it cannot be renamed.
    """
    aside = _sibling(folder, _REPLACED)
    if folder.exists() or not aside.exists():
        return ""
    with writing(folder), _names_locked(folder):
        if folder.exists() or not aside.exists():
            return ""
        with failpoint("rename", folder):
            aside.replace(folder)
        sync_folder(folder.parent)
    return f"a process was killed while it replaced {folder}: the old folder was restored"


def remove_leftovers(folder: Path) -> None:
    """Remove files and folders below `folder` that killed processes left half written or removed.

    The caller must be the only process that writes there. Raises SetupError if removal fails.
    """
    for path in list(folder.rglob(f".*.{_REPLACED}")):
        recover_folder(path.with_name(path.name[1:].removesuffix(f".{_REPLACED}")))
    for pattern in (".*.partial", ".*.partial-journal", f".*.{_REMOVED}", f".*.{_REPLACED}"):
        for path in list(folder.rglob(pattern)):
            with writing(path), failpoint("remove", path):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    # It may have been inside a folder that was just removed.
                    path.unlink(missing_ok=True)
