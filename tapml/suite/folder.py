"""A suite's folder during the carve: a temporary name, a lock, and a rename at the end."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tapml.durable.files import recover_folder, rename_folder, sync_folder, sync_tree
from tapml.runs.lock import LOCK, RunLock
from tapml.suite.index import open_index
from tapml_targets.errors import InputError
from tapml_targets.failpoints import failpoint


def check_target(target: Path, *, overwrite: bool) -> None:
    """Raise :class:`InputError` if `target` exists, unless it is a suite to be replaced."""
    recover_folder(target)
    if not target.exists():
        return
    if not overwrite:
        raise InputError(f"{target} exists: name another folder, or replace it (--overwrite)")
    # Only suites, of any content, are ever removed.
    open_index(target).close()


@contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """The folder to write to; removed with the replaced suite unless it was renamed."""
    folder = target.with_name(target.name + ".partial")
    target.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        with RunLock(folder / LOCK).hold(), failpoint("remove", folder):
            shutil.rmtree(folder)
    folder.mkdir()
    with RunLock(folder / LOCK).hold():
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def publish(folder: Path, target: Path, *, overwrite: bool, durable: bool) -> None:
    """Rename the finished suite; with `durable`, sync it to disk first.

    Raises
    ------
    InputError
        If there is a suite of that name that must not be replaced.
    OSError
        If the rename fails; the previous suite is then unchanged.
    """
    check_target(target, overwrite=overwrite)
    with failpoint("remove", folder / LOCK):
        (folder / LOCK).unlink()
    if durable:
        sync_tree(folder)
    rename_folder(folder, target)
    if durable:
        sync_folder(target.parent)
