"""A cache's file is the old one or the new one, and what killed writers left does not pile up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tapml_targets.failpoints import VARIABLE

_WRITE = "import sys; from pathlib import Path; \
from tapml_targets.cache_folder import write_atomically; \
write_atomically(Path(sys.argv[1]), b'new')"


def write(path: Path, fault: str = "") -> int:
    environment = {**os.environ, VARIABLE: fault}
    return subprocess.run(
        [sys.executable, "-c", _WRITE, path], env=environment, check=False
    ).returncode


@pytest.mark.parametrize("site", ["after write", "before rename", "after rename"])
def test_a_killed_writer_leaves_the_old_file_or_the_new(tmp_path: Path, site: str) -> None:
    path = tmp_path / "key.library"
    path.write_bytes(b"old")
    assert write(path, f"kill@{site} */key.library") == -signal.SIGKILL
    assert path.read_bytes() == (b"new" if site == "after rename" else b"old")


def test_files_of_a_killed_writer_are_removed_after_an_hour(tmp_path: Path) -> None:
    path = tmp_path / "key.library"
    write(path, "kill@before rename */key.library")
    (left,) = tmp_path.iterdir()
    assert write(tmp_path / "other") == 0
    assert left.exists(), "its writer may still be at it"
    an_hour_ago = time.time() - 3601
    os.utime(left, (an_hour_ago, an_hour_ago))
    assert write(path) == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["key.library", "other"]
