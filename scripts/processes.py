"""What /proc says of a process and its descendants."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def family(pid: int) -> list[int]:
    """A process and all its descendants, including those that are being reaped."""
    family = [pid]
    for parent in family:
        # A process, or a thread of it, may end while we read it.
        with suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                with suppress(OSError):
                    children = map(int, (task / "children").read_text("ascii").split())
                    family += [child for child in children if child not in family]
    return family


def workers(pid: int) -> list[int]:
    """The workers of a server, without the template that forks them."""
    return [each for each in family(pid) if _name(each) == "tapml-worker"]


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text("ascii").strip()
    return ""


def memory(pid: int) -> dict[str, int]:
    """Bytes of a process by kind (``Pss_Anon``, ``Private_Dirty``, ...); empty if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()[1:]
    except OSError:
        return {}
    return {line.partition(":")[0]: 1024 * int(line.split()[1]) for line in lines}


def own_bytes(pid: int) -> int:
    """Proportional bytes without pages of files; memory that several share counts once in all."""
    sizes = memory(pid)
    return sizes.get("Pss_Anon", 0) + sizes.get("Pss_Shmem", 0)


def processor_ticks(pid: int) -> int:
    """Processor time of a process in clock ticks.

    Raises
    ------
    OSError
        If it has ended.
    """
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def children_processor_seconds() -> float:
    """Processor time of this process's descendants, those that they have waited for included."""
    ticks = 0
    for pid in family(os.getpid())[1:]:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")
