"""A small file system of its own: a shell in namespaces mounts it, and commands join the shell."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A folder that is a file system for those who join its process.

    Attributes
    ----------
    place
        ``/proc/PID`` of the process that has it mounted.
    """

    def __init__(self, folder: Path, options: str) -> None:
        self._folder = folder
        self._shell = subprocess.Popen(
            ["unshare", "-Urm", "sh"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.place = f"/proc/{self._shell.pid}"
        self._mount(f"-t tmpfs -o {options} tmpfs")

    def close(self) -> None:
        """Unmount it."""
        self._shell.communicate()

    def grow(self, size: str) -> None:
        """Give it room."""
        self._mount(f"-o remount,size={size}")

    def hidden(self, folder: Path) -> list[str]:
        """What lies half-written below a folder on it."""
        seen = Path(self.place, "root") / folder.relative_to("/")
        return [
            each.name for each in seen.rglob("*") if each.match(".*") or each.match("*.partial")
        ]

    def _mount(self, how: str) -> None:
        assert self._shell.stdin is not None and self._shell.stdout is not None
        self._shell.stdin.write(
            f"mount {how} {shlex.quote(str(self._folder))} && echo done || exit\n"
        )
        self._shell.stdin.flush()
        assert self._shell.stdout.readline() == "done\n", self._shell.communicate()[1]


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[SmallDisk]:
    """A folder with a small file system on it, for who joins; skips where that may not be."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here: a small file system needs a mount of its own")
    folder.mkdir()
    mount = f"mount -t tmpfs tmpfs {shlex.quote(str(folder))}"
    probe = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", mount], capture_output=True, text=True, check=False
    )
    if probe.returncode:
        pytest.skip(f"this user may not mount a small file system: {probe.stderr.strip()}")
    disk = SmallDisk(folder, options)
    try:
        yield disk
    finally:
        disk.close()
