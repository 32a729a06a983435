"""Which cores the two ends of a connection run on.

The scheduler's choice affects the cost of a transfer: on one core, data is read from the writer's
cache; on two, each wake-up of the other end costs. It chooses per pair of processes and per run, so
the ratio of two pairs depends on chance. In addition to the free choice there are two fixed ones:
each end on its own cores, like two machines, and all on one core, where a transfer costs the
computation of both ends.

Child processes inherit the cores, so a server's later children stay with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TOPOLOGY: Final = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Placement:
    """Where the ends run.

    Attributes
    ----------
    name
        Label of the figures.
    client, servers
        Cores of each end; empty for those that this process may use.
    """

    name: str
    client: frozenset[int] = frozenset()
    servers: frozenset[int] = frozenset()


FREE: Final = Placement("free")
APART: Final = "ends apart"
ONE_CORE: Final = "one core"


def fixed_placements() -> list[Placement]:
    """The fixed placements; empty if the machine has one core or does not support affinities."""
    if not hasattr(os, "sched_setaffinity"):
        return []
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        return []
    # Two threads of one core share its caches: they belong to one end.
    cores = sorted(_threads_together(allowed), key=min)
    if len(cores) == 1:
        cores = [frozenset({thread}) for thread in sorted(allowed)]
    half = len(cores) // 2
    one = frozenset({min(allowed)})
    return [
        Placement(APART, frozenset().union(*cores[:half]), frozenset().union(*cores[half:])),
        Placement(ONE_CORE, one, one),
    ]


@contextmanager
def placed(placement: Placement) -> Iterator[Callable[[], None]]:
    """Run this process on the servers' cores, so that its children stay there.

    Yields a function that moves this process to the client's cores. Call it after starting and
    connecting to the servers, because it moves only existing threads. The end of the block restores
    all.
    """
    if not placement.servers:
        yield lambda: None
        return
    before = os.sched_getaffinity(0)
    try:
        _move(placement.servers)
        yield lambda: _move(placement.client)
    finally:
        _move(before)


def _move(cores: set[int] | frozenset[int]) -> None:
    """Move this process, with all its threads."""
    for thread in Path("/proc/self/task").iterdir():
        # One may end while they are moved.
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


def _threads_together(allowed: set[int]) -> set[frozenset[int]]:
    """The allowed hardware threads, those of one core together."""
    return {frozenset(_siblings(thread) & allowed) for thread in allowed}


def _siblings(thread: int) -> set[int]:
    try:
        listed = (_TOPOLOGY / f"cpu{thread}/topology/thread_siblings_list").read_text("ascii")
    except OSError:
        return {thread}
    found = {thread}
    for part in listed.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
