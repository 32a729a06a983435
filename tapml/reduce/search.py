"""The search for a smaller failing test: the best candidate so far and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from tapml.reduce.failure_kind import same_failure
from tapml.reduce.trials import Candidate, Trials
from tapml.replaying.results import ReplayResult
from tapml.verdicts.verdict import Verdict

Watcher: TypeAlias = "Callable[[str, Search], None]"


class OutOfTimeError(Exception):
    """The time limit has expired; the best candidate so far is the result."""


@dataclass
class Search:
    """The smallest failing candidate so far.

    Attributes
    ----------
    trials
        Runs candidates.
    best
        The smallest candidate that fails like the original.
    result
        Its replay.
    original
        The original's verdict.
    deadline
        On the monotonic clock; None for none.
    watcher
        Called before every trial with its description.
    """

    trials: Trials
    best: Candidate
    result: ReplayResult
    original: Verdict
    deadline: float | None = None
    watcher: Watcher = field(default=lambda _doing, _search: None)
    tried: int = 0
    kept: int = 0
    # Shapes at which the device was lost: each loss costs a deadline and a new session.
    _deadly: set[tuple[tuple[int, ...], ...]] = field(default_factory=set)

    @contextmanager
    def share(self, of_the_rest: float) -> Iterator[None]:
        """Give the block a share of the remaining time; it ends silently when that expires."""
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
        """Run a candidate, which becomes the best if it fails like the original.

        Parameters
        ----------
        doing
            Description of the trial.
        trials
            Runs it on another kernel; replaces the current one if the candidate is kept.

        Raises
        ------
        OutOfTimeError
            If the time limit has expired.
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
