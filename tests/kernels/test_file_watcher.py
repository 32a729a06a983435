"""A save is noticed once, however an editor writes the file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tapml.kernels.file_watcher import FileWatcher


def in_place(path: Path) -> None:
    """As simple editors do."""
    path.write_text("in place")


def renamed(path: Path) -> None:
    """As careful editors do: another file takes its name."""
    other = path.with_name(".kernel.cl.swp")
    other.write_text("renamed")
    other.replace(path)


def backed_up(path: Path) -> None:
    """As vim does with a backup: for a moment there is no file."""
    path.rename(path.with_name("kernel.cl~"))
    path.write_text("backed up")


def same_time(path: Path) -> None:
    """On a file system with whole seconds: same size, same time."""
    status = path.stat()
    path.write_text("Kernel")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("save", [in_place, renamed, backed_up, same_time])
def test_every_way_to_save_is_noticed_once(tmp_path: Path, save: Callable[[Path], None]) -> None:
    path = tmp_path / "kernel.cl"
    path.write_text("kernel")
    saves = FileWatcher(lambda: [path])
    assert not saves.changed_at_rest()
    save(path)
    assert saves.changed_at_rest()
    assert 0 <= saves.take() < 5
    assert not saves.changed_at_rest()


def test_a_new_file_beside_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.cl").write_text("a")
    saves = FileWatcher(lambda: sorted(tmp_path.glob("*.cl")))
    (tmp_path / "b.cl").write_text("b")
    assert saves.changed()


def test_the_wait_is_counted_from_the_save(tmp_path: Path) -> None:
    path = tmp_path / "kernel.cl"
    path.write_text("kernel")
    saves = FileWatcher(lambda: [path])
    path.write_text("later")
    saved = time.time() - 2
    os.utime(path, (saved, saved))
    assert 2 <= saves.take() < 5


def test_a_file_that_is_older_than_its_save_is_counted_from_now(tmp_path: Path) -> None:
    path = tmp_path / "kernel.cl"
    path.write_text("kernel")
    saves = FileWatcher(lambda: [path])
    other = tmp_path / "old.cl"
    other.write_text("written last year")
    os.utime(other, (1e9, 1e9))
    other.replace(path)
    assert saves.changed()
    assert saves.take() < 5
