"""The search for a smaller failing test: the best so far, and what may still be tried."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from tapml.carving.replay_results import ReplayResult
from tapml.compare.verdict import Verdict
from tapml.reduce.failure_kind import same_failure
from tapml.reduce.trials import Candidate, Trials

Watcher: TypeAlias = "Callable[[str, Search], None]"


class OutOfTimeError(Exception):
    """The budget is spent; the best so far stands."""


@dataclass
class Search:
    """The smallest failing candidate so far.

    Attributes
    ----------
    trials
        Runs candidates.
    best
        The smallest candidate that fails as the original does.
    result
        Its replay.
    original
        The verdict that has to stay.
    deadline
        On the monotonic clock; None for no end.
    watcher
        Called before every trial with what is being done.
    """

    trials: Trials
    best: Candidate
    result: ReplayResult
    original: Verdict
    deadline: float | None = None
    watcher: Watcher = field(default=lambda _doing, _search: None)
    tried: int = 0
    kept: int = 0
    # Shapes at which the device was lost: each costs a deadline and a new session.
    _deadly: set[tuple[tuple[int, ...], ...]] = field(default_factory=set)

    @contextmanager
    def share(self, of_the_rest: float) -> Iterator[None]:
        """Give the block a share of the time that is left; it ends quietly when that is spent."""
        whole = self.deadline
        if whole is not None:
            now = time.monotonic()
            self.deadline = now + (whole - now) * of_the_rest
        try:
            yield
        except OutOfTimeError:
            pass
        finally:
            self.deadline = whole

    def attempt(self, candidate: Candidate, doing: str, trials: Trials | None = None) -> bool:
        """Run a candidate; it becomes the best where it fails as the original does.

        Parameters
        ----------
        candidate
            What is run.
        doing
            What it tries, for people.
        trials
            Of another kernel; it takes the place of the present one where the candidate is kept.

        Raises
        ------
        OutOfTimeError
            If the budget is spent.
        """
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTimeError
        if candidate.shapes in self._deadly:
            return False
        self.watcher(doing, self)
        self.tried += 1
        own = trials or self.trials
        losses = own.device.losses
        result = own.run(candidate)
        if own.device.losses > losses and candidate.shapes != self.best.shapes:
            self._deadly.add(candidate.shapes)
        if result is None or not same_failure(self.original, result.verdict):
            return False
        self.trials, self.best, self.result = own, candidate, result
        self.kept += 1
        return True
