"""Files and folders that are whole or not there, whatever ends the process or the power.

A reader sees the old content or the new, never half. Content is on the disk before its name is, and
the name before the call returns.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tapml_targets.boundaries import crossing
from tapml_targets.errors import SetupError

# What a folder is called while another takes its name (it is whole), and once it is being removed.
_REPLACED: Final = "replaced"
_REMOVED: Final = "removed"
# Longer than another process that is at work takes between two renames.
_BETWEEN_SECONDS: Final = 0.2
# File systems that cannot sync a folder say so with one of these.
_NO_FOLDER_SYNC: Final = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file as a whole. Only the process that holds the session writes here.

    Raises
    ------
    SetupError
        If it cannot be written; what was there stays.
    """
    with writing(path), replace_file(path) as partial:
        partial.write_bytes(data)


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """The path of a file to write in the block, which then takes the place of `path`.

    Raises
    ------
    OSError
        If it cannot be written; what was there stays.
    """
    # Always the same name: what a killed process left is written over by the next.
    partial = path.with_name(f".{path.name}.partial")
    try:
        with crossing("write", path):
            yield partial
        sync_file(partial, place=path)
        with crossing("rename", path):
            partial.replace(path)
        sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace a file as a whole with UTF-8 text."""
    write_bytes(path, text.encode())


def write_json(path: Path, data: object) -> None:
    """Replace a file as a whole with JSON."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the operating system says against writing `path`, as a SetupError that says what to do.

    Raises
    ------
    SetupError
        In place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise SetupError(
            f"cannot write {path}: {error.strerror or error}; free some space or fix the "
            "permissions, then run it again"
        ) from error


def sync_file(path: Path, *, place: Path | None = None) -> None:
    """Wait until a file's content is on the disk; `place` is what it is called at the end."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with crossing("fsync", place or path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where its file system can say so."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with crossing("fsync", folder):
            try:
                os.fsync(descriptor)
            except OSError as error:
                if error.errno not in _NO_FOLDER_SYNC:
                    raise
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Wait until a folder and all that is in it is on the disk."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            sync_file(path)
        elif path.is_dir():
            sync_folder(path)
    sync_folder(folder)


def remove_file(path: Path) -> None:
    """Remove a file, where it is there, and its name from the disk.

    Raises
    ------
    SetupError
        If it cannot be removed.
    """
    with writing(path):
        if not path.exists():
            return
        with crossing("remove", path):
            path.unlink(missing_ok=True)
        sync_folder(path.parent)


def remove_folder(folder: Path) -> None:
    """Remove a folder and what is in it, where it is there.

    It loses its name first: whoever looks sees the whole folder or none. What a process killed
    here left is removed by the next call for the same folder.

    Raises
    ------
    SetupError
        If it cannot be removed.
    """
    with writing(folder):
        if not folder.exists():
            return
        _remove_aside(folder, folder)


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """A new folder to fill in the block, which then takes the place of `folder` as a whole.

    One process at a time. Between two renames neither the old folder nor the new one has the name;
    where a process is killed there, the next call, or :func:`recover_folder`, gives it back to the
    old one.

    Raises
    ------
    SetupError
        If it cannot be written; what was there stays.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    with writing(folder):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            recover_folder(folder)
            if partial.exists():
                shutil.rmtree(partial)
            with crossing("write", folder):
                partial.mkdir()
                yield partial
            sync_tree(partial)
            _exchange(partial, folder)
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _exchange(made: Path, folder: Path) -> None:
    """Give `made` the name `folder`, and remove what had it; if that fails, it has it again."""
    if not folder.exists():
        with crossing("rename", folder):
            made.replace(folder)
        return
    aside = _sibling(folder, _REPLACED)
    with crossing("rename", folder):
        folder.replace(aside)
    try:
        with crossing("rename", folder):
            made.replace(folder)
    except OSError:
        aside.replace(folder)
        raise
    _remove_aside(aside, folder)


def _remove_aside(found: Path, folder: Path) -> None:
    """Remove `found`, which is `folder` or was: whoever looks for either sees a whole one or none.

    In place of what a process killed here left.
    """
    leaving = _sibling(folder, _REMOVED)
    if leaving.exists():
        with crossing("remove", leaving):
            shutil.rmtree(leaving)
    with crossing("rename", found):
        found.replace(leaving)
    with crossing("remove", folder):
        shutil.rmtree(leaving)


def _sibling(folder: Path, what: str) -> Path:
    return folder.with_name(f".{folder.name}.{what}")


def recover_folder(folder: Path) -> str:
    """Bring in order what a process killed in :func:`replace_folder` left; what was done, in words.

    Where it was killed between its two renames the folder that was to be replaced gets its name
    back. What it was about to remove is removed. Empty text where there is nothing to do.

    Raises
    ------
    SetupError
        If that cannot be done.
    """
    aside, leaving = _sibling(folder, _REPLACED), _sibling(folder, _REMOVED)
    with writing(folder):
        if aside.exists() and not folder.exists():
            # Another process may be between the two just now.
            time.sleep(_BETWEEN_SECONDS)
        if aside.exists() and not folder.exists():
            with crossing("rename", folder):
                aside.replace(folder)
            sync_folder(folder.parent)
            return (
                f"a process was killed while it replaced {folder}: what was there before is there "
                "again"
            )
        if not aside.exists() and not leaving.exists():
            return ""
        if aside.exists():
            _remove_aside(aside, folder)
        else:
            with crossing("remove", leaving):
                shutil.rmtree(leaving)
        return (
            f"a process was killed while it removed what had been {folder} before: what was left "
            "of that is gone now"
        )


def remove_left(folder: Path) -> None:
    """Remove what processes that were killed left half written or half removed below a folder.

    Only for whoever holds it: nobody else may be writing there.

    Raises
    ------
    SetupError
        If it cannot be removed.
    """
    for path in list(folder.rglob(f".*.{_REPLACED}")):
        recover_folder(path.with_name(path.name[1:].removesuffix(f".{_REPLACED}")))
    for pattern in (".*.partial", ".*.partial-journal", ".*.removed"):
        for path in list(folder.rglob(pattern)):
            with writing(path), crossing("remove", path):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    # It may have lain in one that went before.
                    path.unlink(missing_ok=True)
