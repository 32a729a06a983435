"""A check needs no room in /dev/shm: results travel through unnamed files in memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_JOBS = Path(__file__).parent.parent / "jobs"
_UNSHARE = shutil.which("unshare") or ""
# In a namespace of its own: /dev/shm is a page, and that is full.
_FULL = "mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero > /dev/shm/full && "


def _in_full_memory(command: str) -> list[str]:
    return [_UNSHARE, "--map-root-user", "--mount", "sh", "-c", _FULL + command]


def test_a_check_runs_while_shared_memory_is_full() -> None:
    if not _UNSHARE or subprocess.run(_in_full_memory("true"), check=False).returncode:
        pytest.skip("no mount namespace can be made here")
    check = f"exec {sys.executable} -m tapml.cli.main distributed check {_JOBS / 'planted.py'}"
    ended = subprocess.run(
        _in_full_memory(f"{check} --world 2 --engine ddp"),
        check=False,
        capture_output=True,
        text=True,
    )

    assert ended.returncode == 0, ended.stderr
    assert "ddp x 2  equal" in ended.stdout
