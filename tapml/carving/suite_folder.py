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
from tapml.durable.boundaries import crossing
from tapml.durable.files import sync_folder, sync_tree
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
            _remove(folder)
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
    with crossing("remove", folder / _LOCK_NAME):
        (folder / _LOCK_NAME).unlink()
    if durable:
        sync_tree(folder)
    old = target.with_name(target.name + ".replaced")
    if overwrite and target.exists():
        _remove(old)
        with crossing("rename", old):
            target.rename(old)
    with crossing("rename", target):
        folder.rename(target)
    if durable:
        sync_folder(target.parent)
    if overwrite:
        _remove(old)


def _remove(folder: Path) -> None:
    if folder.exists():
        with crossing("remove", folder):
            shutil.rmtree(folder)
