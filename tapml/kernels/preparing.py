"""What a watch would like to have and need not wait for, on its way in a child process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from tapml.carving.carved_test import CarvedTest
from tapml.compare.expectation_store import decode
from tapml.compare.probes import ProbeCase
from tapml.isolate.pool import Pool
from tapml.kernels.preparation import JOBS, payload
from tapml.kernels.probe_format import unpack_probe
from tapml.kernels.trial import KernelTrial
from tapml_targets.errors import TapmlError

_DEADLINE_SECONDS: Final = 600.0


class Preparing:
    """Probes, the reference's time and closer measurements of a trial's tests.

    Parameters
    ----------
    trial
        Whose.
    tests
        The tests of a quick look.

    Attributes
    ----------
    probes
        The exact probes beside the first test, once they are made.
    reference_ms
        Mean time of one call of the reference, once it is known.
    problem
        Why something of what arrived last cannot be had; empty where nothing is missing.
    """

    def __init__(self, trial: KernelTrial, tests: Sequence[CarvedTest]) -> None:
        self.probes: tuple[ProbeCase, ...] = ()
        self.reference_ms: float | None = None
        self.problem = ""
        self._trial = trial
        self._tests = {test.id: test for test in trial.tests}
        self._quick = [test.id for test in tests]
        # One at a time: a save has the other processor.
        self._pool = Pool(workers=1, deadline_seconds=_DEADLINE_SECONDS, jobs=JOBS)
        self._asked: set[str] = set()
        self._jobs: list[Future[Any]] = []
        self._begun = False

    def begin(self, hasty: Iterable[str]) -> None:
        """Ask for what is missing; closer measurements of `hasty` tests come before all else."""
        self._measure(hasty)
        if not self._begun:
            self._begun = True
            self._submit("complete", self._quick)
            self._measure(self._quick)

    def stop(self) -> None:
        """End whatever is under way."""
        self._pool.close()

    def take_news(self) -> bool:
        """Take what has arrived since the last call; whether there was anything."""
        arrived = [job for job in self._jobs if job.done()]
        self._jobs = [job for job in self._jobs if job not in arrived]
        self.problem = ""
        for job in arrived:
            try:
                self._take(job.result())
            except TapmlError as error:
                self.problem = str(error)
        return bool(arrived)

    def _take(self, result: dict[str, Any]) -> None:
        operator = self._trial.operator
        for name, data in result.get("closer", ()):
            test = self._tests[name]
            found = decode(data, operator, test.read_inputs, test.read_outputs())
            self._trial.expectations.put_closer(test, found)
        if "probes" in result:
            self.probes = tuple(unpack_probe(each, operator) for each in result["probes"])
            self.reference_ms = result["reference_ms"]

    def _measure(self, tests: Iterable[str]) -> None:
        new = [name for name in tests if name not in self._asked]
        if new:
            self._asked.update(new)
            self._submit("measure", new)

    def _submit(self, job: str, tests: list[str]) -> None:
        facts = self._trial.facts
        data = payload(facts.suite, self._trial.operator.name, tests, facts.policy)
        self._jobs.append(self._pool.submit(job, data))
