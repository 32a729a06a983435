"""Pools of processes that a worker of Dask keeps warm from task to task, a few at a time.

A worker lives for days and meets many jobs. Each pool holds a process with PyTorch imported, so
those that nobody uses are closed when there are too many of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from tapml.isolate.pool import Pool

MOST_IDLE: Final = 2
Key = TypeVar("Key")


@dataclass(eq=False)
class _Kept(Generic[Key]):
    key: Key
    pool: Pool
    users: int = 0


class WarmPools(Generic[Key]):
    """Pools by what they are made for.

    Parameters
    ----------
    make
        Makes the pool of a key.
    alone
        Whether a task has its pool for itself: then it may close it, without ending the processes
        of another task.
    """

    def __init__(self, make: Callable[[Key], Pool], *, alone: bool) -> None:
        self._make = make
        self._alone = alone
        self._lock = threading.Lock()
        # The one that was used last comes last.
        self._kept: list[_Kept[Key]] = []

    @contextmanager
    def lend(self, key: Key) -> Iterator[Pool]:
        """A pool while the block works; one that it closes is forgotten, as after an error."""
        with self._lock:
            kept = next((each for each in reversed(self._kept) if self._fits(each, key)), None)
            if kept is None:
                kept = _Kept(key, self._make(key))
                self._kept.append(kept)
            kept.users += 1
        failed = True
        try:
            yield kept.pool
            failed = False
        finally:
            self._give_back(kept, failed=failed)

    def _fits(self, kept: _Kept[Key], key: Key) -> bool:
        return kept.key == key and not (self._alone and kept.users)

    def _give_back(self, kept: _Kept[Key], *, failed: bool) -> None:
        with self._lock:
            kept.users -= 1
            known = kept in self._kept
            self._kept = [each for each in self._kept if each is not kept]
            forgotten = [kept] if kept.pool.closed or (failed and not kept.users) else []
            if known and not forgotten:
                self._kept.append(kept)
            idle = [each for each in self._kept if not each.users]
            forgotten += idle[: max(len(idle) - MOST_IDLE, 0)]
            self._kept = [each for each in self._kept if each not in forgotten]
        for each in forgotten:
            each.pool.close()
