"""The watch: try the kernel, report the result, wait for a save, repeat.

A trial first replays a sample of the operator's tests, for a verdict within a second of a save; the
others follow until the next save. TVM runs in another process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn, TypeAlias

from tapml.kernels.file_watcher import POLL_SECONDS, FileWatcher
from tapml.kernels.manifest import MANIFEST
from tapml.kernels.preparation import Preparing
from tapml.kernels.sample_tests import choose
from tapml.kernels.trial import KernelTrial
from tapml.kernels.trial_result import Times, TrialResult
from tapml.oracles.carved_case import CarvedCase
from tapml.suite.carved_test import CarvedTest

BUDGET_SECONDS: Final = 0.5
"""With a build of 0.1 to 0.3 s before it, the verdict comes within a second of a save."""
_MOST_FILES: Final = 256


@dataclass(frozen=True)
class Looking:
    """Progress of a trial: current activity, tests done and in all."""

    doing: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True)
class Seen:
    """A new verdict.

    Attributes
    ----------
    result
        The verdict.
    waited
        Seconds since the save; None without a save.
    number
        Number of the trial, from 1.
    """

    result: TrialResult
    waited: float | None
    number: int


@dataclass(frozen=True)
class Missing:
    """Something that complete verdicts need is unavailable, and why."""

    why: str


WatchEvent: TypeAlias = Looking | Seen | Missing
Tell: TypeAlias = Callable[[WatchEvent], None]


class Watch:
    """Tries a kernel after every save until interrupted.

    Parameters
    ----------
    trial
        The kernel and its device; not patient.
    count
        Tests of the first part of a trial.
    tell
        Called with every event, on this thread.
    everything
        Whether the other tests follow.
    budget_seconds
        Time limit of the first part of a trial.
    """

    def __init__(
        self,
        trial: KernelTrial,
        count: int,
        tell: Tell,
        *,
        everything: bool = True,
        budget_seconds: float = BUDGET_SECONDS,
    ) -> None:
        self._trial = trial
        self._tell = tell
        self._quick: list[CarvedCase] = list(choose(trial.tests, count))
        chosen = {test.id for test in self._quick}
        self._rest = [test for test in trial.tests if test.id not in chosen] if everything else []
        self._left: list[CarvedCase] = []
        self._budget = budget_seconds
        self._watcher = FileWatcher(self._watched)
        self._preparing = Preparing(trial, [t for t in self._quick if isinstance(t, CarvedTest)])
        self._times = Times()
        self._number = 0
        self._probed = self._compiled_timed = False

    def run(self) -> NoReturn:
        """Watch.

        Raises
        ------
        KeyboardInterrupt
            On Ctrl-C, which ends the watch.
        """
        try:
            waited: float | None = None
            while True:
                waited = self._wait(self._look(waited))
        finally:
            self._preparing.stop()

    def _look(self, waited: float | None) -> TrialResult:
        """One trial, from the files to a verdict, repeated if a save interrupts it."""
        while True:
            started = time.monotonic()
            self._number += 1
            self._tell(Looking("building", 0, len(self._quick)))
            result = self._replay(self._quick, budget_seconds=self._budget)
            if not result.interrupted:
                break
            waited = self._watcher.take()
        self._left = [*self._quick[result.cases :], *self._rest]
        since = None if waited is None else waited + time.monotonic() - started
        result = self._show(result, since)
        if result.outcome == "device lost":
            # The next save should not wait for a server.
            self._tell(Looking("starting another device server"))
            self._trial.device()
        return result

    def _wait(self, result: TrialResult) -> float | None:
        """Do background work until the next save; the seconds since it, None for other news."""
        self._preparing.begin(tuple(self._trial.expectations.hasty))
        for work in self._worth_doing(result):
            result = work()
            if self._watcher.changed():
                break
        self._preparing.begin(tuple(self._trial.expectations.hasty))
        while not self._watcher.changed_at_rest():
            if self._preparing.take_news():
                if self._preparing.problem:
                    self._tell(Missing(self._preparing.problem))
                if self._take_probes() or result.hasty:
                    return None
                if self._times.reference != self._preparing.reference_ms:
                    self._show(result, None)
            time.sleep(POLL_SECONDS)
        return self._watcher.take()

    def _take_probes(self) -> bool:
        """Add new probes to the cases; return whether there are any."""
        new = self._preparing.probes if not self._probed else ()
        self._quick += new
        self._probed = self._probed or bool(new)
        return bool(new)

    def _worth_doing(self, result: TrialResult) -> Iterator[Callable[[], TrialResult]]:
        if result.tests and not self._compiled_timed:
            yield lambda: self._time_compiled(result)
        if result.passes and self._left:
            yield lambda: self._replay_rest(result)

    def _time_compiled(self, result: TrialResult) -> TrialResult:
        self._tell(Looking("timing the compiled kernel"))
        hasty = set(self._trial.expectations.hasty)
        compiled = self._trial.compiled_ms(self._quick, self._watcher.changed)
        self._trial.expectations.hasty = hasty
        if self._watcher.changed():
            return result
        self._compiled_timed = True
        self._times = replace(self._times, compiled=compiled)
        return self._show(result, None)

    def _replay_rest(self, result: TrialResult) -> TrialResult:
        rest = self._replay(self._left, offset=result.cases)
        return result if rest.interrupted else self._show(merged(result, rest), None)

    def _replay(
        self, cases: Sequence[CarvedCase], offset: int = 0, budget_seconds: float = math.inf
    ) -> TrialResult:
        total = offset + len(cases)
        return self._trial.look(
            cases,
            interrupted=self._watcher.changed,
            on_case=lambda done: self._tell(Looking("replaying", offset + done, total)),
            budget_seconds=budget_seconds,
        )

    def _show(self, result: TrialResult, waited: float | None) -> TrialResult:
        self._times = replace(
            self._times, kernel=result.times.kernel, reference=self._preparing.reference_ms
        )
        self._tell(Seen(replace(result, times=self._times), waited, self._number))
        return result

    def _watched(self) -> Iterator[Path]:
        """The kernel's files and all others in the manifest's folder."""
        folder = self._trial.manifest.parent
        found = set(self._trial.files)
        try:
            beside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        except OSError:
            beside = []
        extension = self._trial.extension
        found |= {p for p in beside if p.name == MANIFEST or p.suffix == extension}
        yield from sorted(found)[:_MOST_FILES]


def merged(first: TrialResult, second: TrialResult) -> TrialResult:
    """Merge the verdicts on two parts of the tests, the first of which passes."""
    graver = first if second.passes else second
    ratios = [each.worst_ratio for each in (first, second) if each.worst_ratio is not None]
    return replace(
        graver,
        passed=first.passed + second.passed,
        tests=first.tests + second.tests,
        probes=first.probes + second.probes,
        worst_ratio=max(ratios, default=None),
        times=first.times,
        seconds=first.seconds + second.seconds,
        hasty=first.hasty or second.hasty,
    )
