"""Looking at processes from outside."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

PATIENCE_SECONDS: Final = 60.0


def shared_memory() -> set[Path]:
    """The segments of shared memory that have a name."""
    return set(Path("/dev/shm").iterdir())


def wait_until_gone(since: set[Path]) -> None:
    """Wait until the segments that were not there `since` are gone: other tests' come and go."""
    new = shared_memory() - since
    wait_until(lambda: not any(each.exists() for each in new))


def wait_until(condition: Callable[[], bool]) -> None:
    end_at = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end_at, "it did not happen"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return "State:\tZ" not in status


def servers() -> list[int]:
    """The servers of this process's pools."""
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(os.getpid())],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if "isolate/boot.py" in line]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
