"""How much memory this machine lets a process use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

_SYSTEM: Final = Path("/")
_MOUNTED: Final = "sys/fs/cgroup"


def usable_bytes(root: Path = _SYSTEM) -> int:
    """The machine's memory in bytes, or a smaller limit of our control groups; 0 if unknown."""
    try:
        memory = max(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), 0)
    except (ValueError, OSError):
        memory = 0
    limits = [limit for file in _limit_files(root) if (limit := _limit_in(file)) > 0]
    return min([*limits, memory] if memory else limits, default=0)


def _limit_files(root: Path) -> Iterator[Path]:
    """Files that may hold limits: of each group and its parents, for both versions of cgroups."""
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mount, name = root / _MOUNTED, "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = root / _MOUNTED / "memory", "memory.limit_in_bytes"
        else:
            continue
        # Inside a container the path may lead nowhere: the limit is then the mount's own.
        group = PurePosixPath(path.lstrip("/"))
        for each in (group, *group.parents):
            yield mount / each / name


def _limit_in(file: Path) -> int:
    """A limit in bytes; 0 for none: no file, or the word ``max``."""
    with suppress(OSError, ValueError):
        return int(file.read_text("ascii"))
    return 0
