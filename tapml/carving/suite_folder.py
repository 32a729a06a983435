"""A suite's folder while it is made: under another name, held by a lock, renamed at the end."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tapml.carving.index import open_index
from tapml_targets.errors import InputError, SetupError

_LOCK_NAME: Final = "lock"


def check_target(target: Path, *, overwrite: bool) -> None:
    """Raise :class:`InputError` if `target` exists, unless it is a suite to be replaced."""
    if not target.exists():
        return
    if not overwrite:
        raise InputError(f"{target} exists: name another folder, or replace it (--overwrite)")
    # Only what is a suite, of whatever content, is ever removed.
    open_index(target).close()


@contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """The folder to write to; removed unless it has been renamed."""
    folder = target.with_name(target.name + ".partial")
    target.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        with _lock(folder):
            shutil.rmtree(folder)
    folder.mkdir()
    with _lock(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold a folder; the lock ends with the process, whatever ends it."""
    descriptor = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SetupError(
                f"another process is carving into {folder}: wait for it or name another folder"
            ) from None
        yield
    finally:
        os.close(descriptor)


def publish(folder: Path, target: Path, *, overwrite: bool, durable: bool) -> None:
    """Give the finished suite its name; with `durable`, once all of it is on the disk."""
    (folder / _LOCK_NAME).unlink()
    if durable:
        for path in (*folder.rglob("*"), folder):
            _sync(path)
    old = target.with_name(target.name + ".replaced")
    if overwrite and target.exists():
        if old.exists():
            shutil.rmtree(old)
        target.rename(old)
    folder.rename(target)
    if durable:
        _sync(target.parent)
    if overwrite and old.exists():
        shutil.rmtree(old)


def _sync(path: Path) -> None:
    """Wait until a file, or the list of a folder's files, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
